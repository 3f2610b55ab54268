"""What is said of a page that has none of the families that were looked for."""

import pytest

from poolpilot_picker.sources.engines import BUILTIN
from poolpilot_picker.sources.strange_pages import what_it_has


@pytest.mark.parametrize(
    ("engine", "page", "said"),
    [
        ("vllm", b"", "the page is empty; engines that write metrics as they come do so until the first request"),
        ("vllm", b"\r\n", "the page is empty; engines that write metrics as they come do so until the first request"),
        (
            "vllm",
            b"# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n",
            "the page announces vllm:num_requests_running without a value, as before an engine's first request",
        ),
        (
            "trtllm-serve",
            b"# TYPE trtllm_num_requests_waiting gauge\nprocess_start_time_seconds 5\n",
            "the page announces trtllm_num_requests_waiting without a value, as before an engine's first request",
        ),
        (
            "vllm",
            b"go_threads 3\nlmdeploy:num_requests_running 1\n",
            "the page has those of engine lmdeploy: is the endpoint's engine named rightly?",
        ),
        (
            "triton-tensorrt-llm",
            b'nv_inference_pending_request_count{model="m"} 1\n',
            "the page has those of engine triton: is the endpoint's engine named rightly?",
        ),
        ("vllm", b'# HELP go_x y\n\ngo_x{a="b"} 1\n', "the first name on the page is 'go_x'"),
        ("vllm", b"# nothing\n", "the page has no series"),
        ("vllm", b"<html>sign in</html>\n", "the first name on the page is '<html>sign'"),
        ("vllm", b"\xff" * 300 + b"\n", "the first name on the page is '" + "\\\\xff" * 20 + "'"),
        ("vllm", b"vllm:num_requests_running 1", "the page has no series"),
    ],
)
def test_what_a_page_has_instead(engine, page, said):
    assert what_it_has(page, BUILTIN[engine]) == said
