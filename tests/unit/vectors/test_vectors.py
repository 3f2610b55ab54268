"""Every reference vector that needs no other program: it passes, or is expected to fail with what it waits for.

Compared are endpoint, status, the start of the message, the metadata and the bytes that go on. Two differences are
meant: received headers are never echoed, and a response that is not an event stream passes chunk by chunk instead of
being held back until its end. The expectation "no pods → 500" is 503 here: the same refusal as for every other request.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import json_format

from hermetic_bench import Bench, body_of, is_picked, is_refused, passed, profile, sent
from poolpilot_picker.config.load import load
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.extproc.replies import StreamedReply, streamed
from poolpilot_picker.requests import UsageReader
from poolpilot_picker.requests.request import InferenceRequest, PrefixChain
from poolpilot_picker.routing.plugins.cache_scorers import LoraAffinityScorer
from poolpilot_picker.routing.plugins.load_scorers import KvCacheScorer, QueueScorer, RunningRequestsScorer
from poolpilot_picker.routing.registry import build_profile, default_registry
from poolpilot_picker.sources.metric_spec import parse_metric_spec
from view_builder import make_adapters, make_table, make_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FOLDER = Path(__file__).parents[2] / "data/vectors"
HERMETIC = yaml.safe_load((FOLDER / "epp-hermetic.yaml").read_text())
SETUP = HERMETIC["setup"]
SMALL = yaml.safe_load((FOLDER / "small.yaml").read_text())

# ── the picker's integration cases ───────────────────────────────────────────


def http_case(case: dict[str, Any]) -> None:
    """A case whose request is answered by a pick or a refusal."""
    bench = Bench(SETUP, case, SETUP["scorers"])
    replies = sent(bench, SETUP, case)
    expected = case["expect"]
    if "status" in expected:
        # Behind the colon stands the message of a decoder.
        is_refused(replies, expected["status"], expected["body"].partition(" bodyMap:")[0])
        bench.close()
        return
    rest = is_picked(replies, expected["endpoint"])
    wanted = body_of(SETUP, case["request"]).replace(
        case["request"]["model"].encode(), expected.get("body_model", case["request"]["model"]).encode()
    )
    assert passed(rest, "request_body") == wanted
    fields = {
        one.header.key: one.header.raw_value for one in replies[0].request_headers.response.header_mutation.set_headers
    }
    assert fields.get("content-length") == str(len(wanted)).encode()
    bench.close()
    assert (
        bench.metrics.registry.get_sample_value(
            "llm_d_epp_request_total",
            {
                "model_name": case["request"]["model"],
                "target_model_name": expected.get("body_model", case["request"]["model"]),
                "fairness_id": "",
                "priority": str(SETUP["objectives"].get(case["request"]["model"], 0)),
            },
        )
        == 1.0
    )


def response_case(chunks: list[bytes], content_type: str, input_tokens: float | None = None) -> Callable[[Any], None]:
    """A case about the response: its bytes pass, in as many messages."""

    def check(case: dict[str, Any]) -> None:
        bench = Bench(SETUP, case, SETUP["scorers"])
        is_picked(sent(bench, SETUP, {**case, "request": {**case["request"], "prompt": "test"}}), "192.168.1.1:8000")
        message = ext_proc.ProcessingRequest()
        json_format.ParseDict(
            {
                "response_headers": {
                    "headers": {
                        "headers": [{"key": ":status", "value": "200"}, {"key": "content-type", "value": content_type}]
                    }
                },
                "attributes": {
                    "envoy.filters.http.ext_proc": {
                        "response.code_details": "via_upstream",
                        "upstream.address": "192.168.1.1:8000",
                    }
                },
            },
            message,
        )
        [head] = bench.send(message)
        assert head.WhichOneof("response") == "response_headers"
        replies = bench.body("response_body", chunks)
        assert len(replies) == len(chunks)
        assert passed(replies, "response_body") == b"".join(chunks)
        bench.close()
        if input_tokens is not None:
            families = {family.name: family for family in bench.metrics.registry.collect()}
            samples = families["llm_d_epp_request_input_tokens"].samples
            assert [one.value for one in samples if one.name.endswith("_sum")] == [input_tokens]
            [bucket] = [one.value for one in samples if one.labels.get("le") == "8.0"]
            assert bucket == 1.0

    return check


def grpc_case(case: dict[str, Any]) -> None:
    """vLLM's gRPC API. Picked at the headers: a stream that goes both ways would wait for ever for its body."""
    bench = Bench(SETUP, case, {"queue-scorer": 1, "kv-cache-utilization-scorer": 1})
    replies = bench.headers(
        "request_headers",
        {":method": "POST", ":path": case["path"], "content-type": "application/grpc", "te": "trailers"},
    )
    if "status" in case["expect"]:
        # The recorded 500 is the reference's slip: an empty pool is 503 for every request.
        is_refused(replies, 503, "inference error: ServiceUnavailable - ")
        assert replies[0].immediate_response.grpc_status.status == 14
        bench.close()
        return
    assert is_picked(replies, case["expect"]["endpoint"]) == []
    frame = b"\x00\x00\x00\x00\x05hello"
    chunks = [frame[:4], frame[4:]] if "split" in case.get("request", {}) else [frame]
    assert passed(bench.body("request_body", chunks), "request_body") == frame
    bench.close()


# ── small vectors ────────────────────────────────────────────────────────────

SCORERS = {
    "queue-scorer": ("waiting", QueueScorer),
    "running-requests-size-scorer": ("running", RunningRequestsScorer),
    "kv-cache-utilization-scorer": ("kv_usage", KvCacheScorer),
}


def scorer_case(name: str) -> Callable[[Any], None]:
    """Scores of endpoints by one number each."""
    column, scorer = SCORERS[name]

    def check(case: dict[str, Any]) -> None:
        table = make_table(len(case["in"]), **{column: case["in"]})
        assert scorer().score(make_view(table)) == pytest.approx(case["out"])

    return check


def lora_case(case: dict[str, float]) -> None:
    adapters = make_adapters(
        4, models=[["a", "x"], ["x"], ["x", "y"], ["x", "y"]], waiting=[[], [], ["a"], ["z"]], slots=2
    )
    request = InferenceRequest(request_id="r", target_model="a")
    scores = LoraAffinityScorer().score(make_view(make_table(4), request=request, adapters=adapters))
    assert scores.tolist() == [case["active"], case["room"], case["waiting"], case["full"]]


def weights_case(case: dict[str, Any]) -> None:
    """Weights are not normalised: scores of 1 add up to their sum."""
    total: list[float] = []

    class Watching:
        def pick(self, view: Any, scores: Any) -> list[int]:
            total.append(float(scores.max()))
            return [int(scores.argmax())]

    names = {"queue": "queue-scorer", "kv": "kv-cache-utilization-scorer", "prefix": "prefix-cache-scorer"}
    text = profile({names[name]: weight for name, weight in case["weights"].items()})
    built = build_profile(load(text, default_registry()))
    built.picker = Watching()
    table = make_table(1, waiting=[0], kv_usage=[0.0])
    request = InferenceRequest(request_id="r", prompt_tokens=64, prefix=PrefixChain(hashes=[1], ends=[64.0]))
    built.decide(make_view(table, request=request, cached=[64.0]))
    assert total == [case["max"]]


def chunking_case(case: dict[str, int]) -> None:
    replies = streamed([b"x" * case["length"]] if case["length"] else [], True, request=True)
    assert len(replies) == case["messages"]
    ends = [reply.end_of_stream for reply in replies if isinstance(reply, StreamedReply)]
    assert ends == [False] * (len(replies) - 1) + [True]


CONTENT = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"total_tokens":17,"completion_tokens":10}}\n\n'
DONE = b"data: [DONE]\n\n"


def usage_case(*chunks: bytes) -> Callable[[Any], None]:
    def check(case: dict[str, str]) -> None:
        reader = UsageReader(streamed=True)
        for chunk in chunks:
            reader.feed(chunk)
        reader.finish()
        if case["usage"] == "kept":
            assert reader.usage is not None
            assert (reader.usage.prompt_tokens, reader.usage.completion_tokens) == (7, 10)
        else:
            # Not zeros: what was not said is not known.
            assert reader.usage is None

    return check


def valid_spec(text: str) -> None:
    parse_metric_spec(text)


def invalid_spec(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_metric_spec(text)


class WaitsFor(NamedTuple):
    """A case that nothing can pass yet."""

    feature: str


EVENTS = WaitsFor("KV events")

LISTED: dict[str, Any] = {
    "hermetic 1": http_case,
    "hermetic 2": http_case,
    "hermetic 4": http_case,
    "hermetic 5": http_case,
    "hermetic 7": http_case,
    "hermetic 8": http_case,
    "hermetic 9": http_case,
    "hermetic 10": http_case,
    "hermetic 12": http_case,
    "hermetic 14": http_case,
    "hermetic 16": response_case([b'{"choices":[{"te', b'xt":"hello"}]}'], "application/json"),
    "hermetic 19": response_case([b"data: {}\n\n", USAGE + DONE, b""], "text/event-stream", 7.0),
    "grpc lower queue for Generate": grpc_case,
    "grpc no shed": grpc_case,
    "grpc split body": grpc_case,
    "grpc no pods": grpc_case,
    "kv_events map form, rank 0": EVENTS,
    "kv_events array form (older releases), BlockStored fields up to group_idx": EVENTS,
    "kv_frames": EVENTS,
    "vllm_block_hashes sha256_cbor default (NONE_HASH = H('vllm-none-hash'), 0.33.0)": WaitsFor("vLLM's block hashes"),
    "vllm_block_hashes sha256_cbor PYTHONHASHSEED=0": WaitsFor("vLLM's block hashes"),
    "vllm_block_hashes sha256 default": WaitsFor("vLLM's block hashes"),
    "vllm_block_hashes sha256 PYTHONHASHSEED=0": WaitsFor("vLLM's block hashes"),
    **{
        f"scorers {name} {index}": scorer_case(name)
        for name, count in (
            ("queue-scorer", 3),
            ("running-requests-size-scorer", 3),
            ("kv-cache-utilization-scorer", 4),
        )
        for index in range(count)
    },
    "scorers lora-affinity-scorer": lora_case,
    "scorers weighted_total": weights_case,
    **{f"body_chunking {length}": chunking_case for length in (0, 61_000, 62_000, 62_001, 63_000, 125_000)},
    "sse_usage usage and [DONE] in the same chunk": usage_case(CONTENT, USAGE + DONE),
    "sse_usage usage and [DONE] in consecutive chunks": usage_case(CONTENT, USAGE, DONE),
    "sse_usage content chunks, then usage, then [DONE]": usage_case(CONTENT, CONTENT, USAGE, CONTENT, DONE),
    "sse_usage no usage at all": usage_case(CONTENT, DONE),
    **{f"metric_spec_parser valid {text!r}": valid_spec for text in ("m", "m{a=b}", 'm{a="b"}', "m{a=b,c=d}")},
    "metric_spec_parser valid ' m { a = b , c = d } '": valid_spec,
    **{
        f"metric_spec_parser invalid {text!r}": invalid_spec
        for text in ("", "m{a=b", "ma=b}", "m{a}", "m{=b}", "m{a=}", "m{a=b}x", "{a=b}")
    },
}


def recorded() -> Iterator[tuple[str, Any]]:
    """(name, case) of everything that stands in the two files."""
    yield from ((f"hermetic {case['id']}", case) for case in HERMETIC["cases"])
    yield from ((f"grpc {case['name']}", case) for case in HERMETIC["grpc_cases"])
    yield from ((f"kv_events {case['name']}", case) for case in SMALL["kv_events"])
    yield "kv_frames", SMALL["kv_frames"]
    yield from ((f"vllm_block_hashes {case['algo']} {case['seed']}", case) for case in SMALL["vllm_block_hashes"])
    for name, cases in SMALL["scorers"].items():
        if isinstance(cases, list):
            yield from ((f"scorers {name} {index}", case) for index, case in enumerate(cases))
        else:
            yield f"scorers {name}", cases
    yield from ((f"body_chunking {case['length']}", case) for case in SMALL["body_chunking"])
    yield from ((f"sse_usage {case['stream']}", case) for case in SMALL["sse_usage"])
    for kind, texts in SMALL["metric_spec_parser"].items():
        yield from ((f"metric_spec_parser {kind} {text!r}", text) for text in texts)


def parameters() -> list[Any]:
    """Every recorded case with what checks it."""
    found = []
    for name, case in recorded():
        check = LISTED.get(name, WaitsFor("an entry in LISTED"))
        waits = isinstance(check, WaitsFor)
        marks = [pytest.mark.xfail(strict=True, reason=f"waits for {check.feature}")] if waits else []
        found.append(pytest.param(check, case, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("check", "case"), parameters())
def test_case(check: Any, case: Any) -> None:
    if isinstance(check, WaitsFor):
        pytest.fail("not built yet")
    check(case)


def test_every_case_is_listed_once() -> None:
    names = [name for name, _ in recorded()]
    assert len(names) == len(set(names))
    assert set(names) == set(LISTED)


def test_every_section_is_read() -> None:
    """A section that a newer file adds must not be overlooked."""
    assert set(HERMETIC) == {"setup", "cases", "grpc_cases"}
    assert set(SMALL) == {
        "kv_events",
        "kv_frames",
        "vllm_block_hashes",
        "scorers",
        "body_chunking",
        # On a real API server: tests/component/kube/test_crds.py.
        "inferencepool_cel",
        "sse_usage",
        "metric_spec_parser",
    }
