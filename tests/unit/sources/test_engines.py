"""Pages of each engine give the right sample: recorded for vLLM, written from the documented names for the rest."""

import math
from pathlib import Path

import pytest

from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.sources.engines import BUILTIN, engine_named, engines_with
from poolpilot_picker.sources.engines.custom import CustomMetric, EngineSpecs, engine_from_specs
from poolpilot_picker.sources.page_reader import PageReader
from poolpilot_picker.sources.restart import RestartDetector
from poolpilot_picker.state.samples import EngineSample, HistogramTotals

DATA = Path(__file__).parents[2] / "data/engines"


def read(engine: str, page: str | bytes, **options) -> EngineSample:
    body = page.encode() if isinstance(page, str) else page
    return PageReader(BUILTIN[engine]).read(body, 5.0, **options)[0]


def recorded(name: str) -> bytes:
    return (DATA / "vllm-0.32" / name).read_bytes()


def told(sample: EngineSample) -> dict[str, object]:
    """The fields that are known."""
    return {name: value for name in sample.__struct_fields__ if (value := getattr(sample, name)) is not None}


def test_vllm_busy_with_adapters():
    assert told(read("vllm", recorded("metrics-busy-lora.txt"))) == {
        "taken_ms": 5.0,
        "running": 29.0,
        "waiting": 371.0,
        "kv_usage": 0.007080942497863507,
        "block_tokens": 128,
        "kv_capacity_tokens": 1048576,
        "prefix_caching": True,
        "max_adapters": 2,
        "active_adapters": ("ad-a", "ad-b"),
        "waiting_adapters": ("ad-a", "ad-b"),
        "preemptions": 0.0,
        "prompt_tokens": 11997.0,
        "generated_tokens": 118.0,
        "cached_prompt_tokens": 1792.0,
        "cache_queried_tokens": 12247.0,
        "requests_succeeded": 9.0,
        "ttft": HistogramTotals(45.52900695800781, 37.0),
        "inter_token": HistogramTotals(20.33521104500005, 81.0),
        "queue_time": HistogramTotals(0.00012064200006989267, 9.0),
        "prefill_time": HistogramTotals(0.91976306499987, 9.0),
        "started_unix_s": 1795951802.36,
    }


def test_vllm_idle_has_no_adapter_information_yet():
    sample = read("vllm", recorded("metrics-idle.txt"))
    assert (sample.running, sample.waiting, sample.kv_usage) == (0.0, 0.0, 0.0)
    assert sample.active_adapters is None
    assert sample.max_adapters is None


def test_vllm_under_kv_pressure():
    sample = read("vllm", recorded("metrics-kv-pressure.txt"))
    assert (sample.running, sample.kv_usage, sample.preemptions) == (6.0, 0.6281407035175879, 3.0)
    assert (sample.block_tokens, sample.kv_capacity_tokens) == (32, 6400)
    assert sample.active_adapters == ()


def test_vllm_selected_families_only():
    sample = read("vllm", recorded("metrics-kv-pressure-selected.txt"))
    whole = read("vllm", recorded("metrics-kv-pressure.txt"))
    for field in ("running", "waiting", "kv_usage", "preemptions", "cached_prompt_tokens", "active_adapters"):
        assert getattr(sample, field) == getattr(whole, field)
    assert sample.kv_capacity_tokens is None
    assert sample.ttft is None


def test_vllm_data_parallel_ranks_are_added():
    sample = read("vllm", recorded("metrics-dp2-multiproc.txt"))
    assert (sample.prompt_tokens, sample.generated_tokens, sample.requests_succeeded) == (15.0, 12.0, 3.0)
    assert sample.ttft == HistogramTotals(pytest.approx(0.021977663040161133 + 0.014080286026000977), 3.0)
    assert (sample.block_tokens, sample.kv_capacity_tokens) == (32, 2 * 6400)
    assert sample.started_unix_s is None


def test_vllm_kv_usage_is_the_fullest_rank():
    page = "".join(
        f'vllm:num_requests_running{{engine="{rank}"}} {running}\nvllm:kv_cache_usage_perc{{engine="{rank}"}} {usage}\n'
        for rank, running, usage in ((0, 3, 0.25), (1, 4, 0.75), (2, 0, 0.5))
    )
    sample = read("vllm", page)
    assert (sample.running, sample.kv_usage) == (7.0, 0.75)


def test_processes_of_one_rank_are_not_added():
    page = (
        'vllm:num_requests_running{engine="0",pid="11"} 3\nvllm:num_requests_running{engine="0",pid="12"} 5\n'
        'vllm:num_requests_running{engine="0",pid="14"} 4\n'
        'vllm:num_requests_running{engine="1",pid="13"} 2\n'
    )
    assert read("vllm", page).running == 7.0


def test_a_series_that_is_there_twice_counts_once():
    page = (
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 2\n'
        'vllm:num_requests_running{engine="0"} 4\nvllm:num_requests_waiting 7\nvllm:num_requests_waiting 7\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1\n'
    )
    sample = read("vllm", page)
    assert (sample.running, sample.waiting, sample.kv_capacity_tokens) == (6.0, 7.0, 1600)


def test_vllm_before_the_names_changed():
    page = (
        'vllm:num_requests_running{model_name="m"} 2\nvllm:num_requests_waiting{model_name="m"} 1\n'
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:gpu_prefix_cache_queries_total{model_name="m"} 10\n'
        'vllm:gpu_prefix_cache_hits_total{model_name="m"} 4\n'
        'vllm:time_per_output_token_seconds_sum{model_name="m"} 3\n'
        'vllm:time_per_output_token_seconds_count{model_name="m"} 6\n'
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",enable_prefix_caching="False"} 1\n'
    )
    sample = read("vllm", page)
    assert (sample.kv_usage, sample.cache_queried_tokens, sample.cached_prompt_tokens) == (0.5, 10.0, 4.0)
    assert sample.inter_token == HistogramTotals(3.0, 6.0)
    assert (sample.block_tokens, sample.kv_capacity_tokens, sample.prefix_caching) == (16, 1600, False)


def test_a_new_name_goes_before_an_old_one():
    assert read("vllm", "vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.2\n").kv_usage == 0.2


def test_cache_config_of_which_nothing_is_a_number():
    sample = read(
        "vllm", 'vllm:cache_config_info{block_size="None",num_gpu_blocks="None",enable_prefix_caching="maybe"} 1\n'
    )
    assert told(sample) == {"taken_ms": 5.0}


def test_stale_adapter_series_do_not_count():
    page = (
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.79595180e+09\n'
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="x, y",waiting_lora_adapters="z"} 1.79595190e+09\n'
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.7959518926e+09\n'
    )
    sample = read("vllm", page)
    assert (sample.active_adapters, sample.waiting_adapters, sample.max_adapters) == (("x", "y"), ("z",), 4)


def test_residency_where_the_engine_exports_it():
    page = (
        'vllm:lora_adapter_loaded{adapter_name="b",level="gpu",pinned="false",rank="0"} 1\n'
        'vllm:lora_adapter_loaded{adapter_name="a",level="GPU",pinned="false",rank="0"} 1\n'
        'vllm:lora_adapter_loaded{adapter_name="c",level="cpu",pinned="false",rank="0"} 1\n'
        'vllm:lora_adapter_loaded{adapter_name="d",level="gpu",pinned="false",rank="0"} 0\n'
    )
    assert read("vllm", page).resident_adapters == ("a", "b")
    assert read("vllm", "vllm:num_requests_running 1\n").resident_adapters is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1"])
def test_values_that_say_nothing_are_missing_not_zero(value):
    sample = read(
        "vllm", f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 4\nvllm:kv_cache_usage_perc {value}\n"
    )
    assert told(sample) == {"taken_ms": 5.0, "waiting": 4.0}


def test_one_rank_without_a_value_leaves_the_others():
    assert (
        read("vllm", 'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 2\n').running
        == 2.0
    )


def test_usage_above_one_is_one():
    assert read("vllm", "vllm:kv_cache_usage_perc 1.25\n").kv_usage == 1.0


def test_an_empty_page_tells_nothing():
    for engine in BUILTIN:
        assert told(read(engine, "")) == {"taken_ms": 5.0}


def test_what_is_asked_rarely_is_not_looked_for():
    sample = read("vllm", recorded("metrics-busy-lora.txt"), everything=False)
    assert sample.running == 29.0
    assert sample.ttft is None
    assert sample.kv_capacity_tokens is None
    assert "vllm:cache_config_info" not in BUILTIN["vllm"].families(False)
    assert "vllm:cache_config_info" in BUILTIN["vllm"].families(True)


SGLANG = """# HELP sglang:num_running_reqs The number of running requests
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",engine_type="unified",tp_rank="0",pp_rank="0",dp_rank="0"} 7.0
sglang:num_running_reqs{model_name="m",engine_type="unified",tp_rank="0",pp_rank="0",dp_rank="1"} 5.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="m",tp_rank="0",dp_rank="0"} 2.0
sglang:num_queue_reqs{model_name="m",tp_rank="1",dp_rank="0"} 2.0
sglang:num_queue_reqs{model_name="m",tp_rank="0",dp_rank="1"} 1.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m",tp_rank="0",dp_rank="0"} 0.28
sglang:token_usage{model_name="m",tp_rank="0",dp_rank="1"} 0.31
# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{model_name="m",tp_rank="0",dp_rank="0"} 100000.0
sglang:max_total_num_tokens{model_name="m",tp_rank="0",dp_rank="1"} 100000.0
# TYPE sglang:page_size gauge
sglang:page_size{model_name="m",tp_rank="0",dp_rank="0"} 64.0
# TYPE sglang:num_retracted_requests_total counter
sglang:num_retracted_requests_total{model_name="m",dp_rank="0"} 3.0
sglang:num_retracted_requests_total{model_name="m",dp_rank="1"} 1.0
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m"} 8128902.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="m"} 7557572.0
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{model_name="m",cache_source="device"} 100.0
sglang:cached_tokens_total{model_name="m",cache_source="host"} 20.0
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{model_name="m"} 11.0
# TYPE sglang:lora_pool_slots_total gauge
sglang:lora_pool_slots_total{model_name="m"} 8.0
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 1.0
sglang:time_to_first_token_seconds_sum{model_name="m"} 2.5
sglang:time_to_first_token_seconds_count{model_name="m"} 11.0
# TYPE sglang:inter_token_latency_seconds histogram
sglang:inter_token_latency_seconds_sum{model_name="m"} 9.0
sglang:inter_token_latency_seconds_count{model_name="m"} 400.0
# TYPE sglang:queue_time_seconds histogram
sglang:queue_time_seconds_sum{model_name="m"} 0.5
sglang:queue_time_seconds_count{model_name="m"} 11.0
"""


def test_sglang():
    assert told(read("sglang", SGLANG)) == {
        "taken_ms": 5.0,
        "running": 12.0,
        "waiting": 3.0,
        "kv_usage": 0.31,
        "block_tokens": 64,
        "kv_capacity_tokens": 200000,
        "max_adapters": 8,
        "preemptions": 4.0,
        "prompt_tokens": 8128902.0,
        "generated_tokens": 7557572.0,
        "cached_prompt_tokens": 120.0,
        "cache_queried_tokens": 8128902.0,
        "requests_succeeded": 11.0,
        "ttft": HistogramTotals(2.5, 11.0),
        "inter_token": HistogramTotals(9.0, 400.0),
        "queue_time": HistogramTotals(0.5, 11.0),
    }


def test_sglang_priorities_have_an_aggregate():
    page = (
        'sglang:num_queue_reqs{priority="",dp_rank="0"} 5\nsglang:num_queue_reqs{priority="1",dp_rank="0"} 3\n'
        'sglang:num_queue_reqs{priority="2",dp_rank="0"} 2\n'
    )
    assert read("sglang", page).waiting == 5.0


def test_sglang_counts_requests_without_a_priority_as_one_class_among_others():
    # The gauges' empty priority is the sum of the others; the counters' is requests that name none.
    before = (
        'sglang:num_running_reqs{priority=""} 3\nsglang:num_running_reqs{priority="1"} 3\n'
        'sglang:generation_tokens_total{is_streaming="true",priority="1"} 1000\n'
        'sglang:generation_tokens_total{is_streaming="true",priority="2"} 500\n'
        'sglang:time_to_first_token_seconds_sum{priority="1"} 4\n'
        'sglang:time_to_first_token_seconds_count{priority="1"} 8\n'
    )
    after = (
        before
        + 'sglang:generation_tokens_total{is_streaming="true",priority=""} 10\n'
        + 'sglang:time_to_first_token_seconds_sum{priority=""} 1\n'
        + 'sglang:time_to_first_token_seconds_count{priority=""} 2\n'
    )
    first, second = read("sglang", before), read("sglang", after)
    assert (first.running, first.generated_tokens, first.ttft) == (3.0, 1500.0, HistogramTotals(4.0, 8.0))
    assert (second.running, second.generated_tokens, second.ttft) == (3.0, 1510.0, HistogramTotals(5.0, 10.0))
    detector = RestartDetector()
    assert detector.observe(first) is None
    assert detector.observe(second) is None, "the first request without a priority is no restart"


def test_sglang_cache_info_of_other_versions():
    info = read("sglang", 'sglang:cache_config_info{page_size="16",num_pages="1000"} 1\n')
    assert (info.block_tokens, info.kv_capacity_tokens) == (16, 16000)
    gauges = read("sglang", "sglang:page_size 16\nsglang:num_pages 500\n")
    assert (gauges.block_tokens, gauges.kv_capacity_tokens) == (16, 8000)


TRTLLM = """# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 4.0
# TYPE trtllm_num_requests_waiting gauge
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 6.0
# TYPE trtllm_kv_cache_utilization gauge
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.42
# TYPE trtllm_kv_cache_tokens_per_block gauge
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
# TYPE trtllm_kv_cache_max_blocks gauge
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 1000.0
# TYPE trtllm_max_num_active_requests gauge
trtllm_max_num_active_requests{engine_type="trtllm",model_name="m"} 256.0
# TYPE trtllm_request_success_total counter
trtllm_request_success_total{engine_type="trtllm",finished_reason="length",model_name="m"} 7.0
trtllm_request_success_total{engine_type="trtllm",finished_reason="stop",model_name="m"} 3.0
# TYPE trtllm_prompt_tokens_total counter
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 5000.0
# TYPE trtllm_generation_tokens_total counter
trtllm_generation_tokens_total{engine_type="trtllm",model_name="m"} 210.0
# TYPE trtllm_prompt_cached_tokens_total counter
trtllm_prompt_cached_tokens_total{engine_type="trtllm",model_name="m"} 800.0
# TYPE trtllm_request_decode_time_seconds histogram
trtllm_request_decode_time_seconds_sum{engine_type="trtllm",model_name="m"} 4.0
trtllm_request_decode_time_seconds_count{engine_type="trtllm",model_name="m"} 10.0
# TYPE trtllm_time_to_first_token_seconds histogram
trtllm_time_to_first_token_seconds_sum{engine_type="trtllm",model_name="m"} 1.5
trtllm_time_to_first_token_seconds_count{engine_type="trtllm",model_name="m"} 10.0
# TYPE trtllm_request_queue_time_seconds histogram
trtllm_request_queue_time_seconds_sum{engine_type="trtllm",model_name="m"} 0.25
trtllm_request_queue_time_seconds_count{engine_type="trtllm",model_name="m"} 10.0
"""


def test_trtllm_serve():
    assert BUILTIN["trtllm-serve"].path == "/prometheus/metrics"
    assert told(read("trtllm-serve", TRTLLM)) == {
        "taken_ms": 5.0,
        "running": 4.0,
        "waiting": 6.0,
        "kv_usage": 0.42,
        "block_tokens": 32,
        "kv_capacity_tokens": 32000,
        "max_sequences": 256,
        "prompt_tokens": 5000.0,
        "generated_tokens": 210.0,
        "cached_prompt_tokens": 800.0,
        "cache_queried_tokens": 5000.0,
        "requests_succeeded": 10.0,
        "ttft": HistogramTotals(1.5, 10.0),
        "inter_token": HistogramTotals(4.0, 200.0),
        "queue_time": HistogramTotals(0.25, 10.0),
    }


TRITON_TRTLLM = """# HELP nv_trt_llm_request_metrics TRT LLM request metrics
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1.000000
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 3.000000
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512.000000
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 8.000000
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 5.000000
# HELP nv_trt_llm_kv_cache_block_metrics TRT LLM KV cache block metrics
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.400000
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64.000000
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 40.000000
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 6239.000000
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6239.000000
"""


def test_triton_tensorrt_llm():
    assert told(read("triton-tensorrt-llm", TRITON_TRTLLM)) == {
        "taken_ms": 5.0,
        "running": 3.0,
        "waiting": 5.0,
        "kv_usage": 0.4,
        "block_tokens": 64,
        "kv_capacity_tokens": 64 * 6239,
        "max_sequences": 512,
    }


def test_triton_tensorrt_llm_before_it_told_the_share_and_what_waits():
    now = "\n".join(
        line for line in TRITON_TRTLLM.splitlines() if 'type="fraction"' not in line and 'type="waiting"' not in line
    )
    expected = {
        "taken_ms": 5.0,
        "running": 3.0,
        "kv_usage": 40 / 6239,
        "block_tokens": 64,
        "kv_capacity_tokens": 64 * 6239,
        "max_sequences": 512,
    }
    assert told(read("triton-tensorrt-llm", now + "\n")) == expected
    before = now.replace("_request_metrics", "_request_statistics").replace("_block_metrics", "_block_statistics")
    assert told(read("triton-tensorrt-llm", before + "\n")) == expected


def test_triton_tells_what_waits_and_no_kv():
    page = (
        'nv_inference_pending_request_count{model="a",version="1"} 2\n'
        'nv_inference_pending_request_count{model="b",version="1"} 3\n'
        'nv_inference_exec_count{model="a",version="1"} 40000\nnv_inference_request_success{model="a",version="1"} 12\n'
    )
    assert told(read("triton", page)) == {"taken_ms": 5.0, "waiting": 5.0, "requests_succeeded": 12.0}


def test_tgi_kv_usage_is_a_proxy():
    page = (
        "# TYPE tgi_queue_size gauge\ntgi_queue_size 3\n# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size 9\n"
        "# TYPE tgi_batch_current_max_tokens gauge\ntgi_batch_current_max_tokens 2000\n"
        "# TYPE tgi_batch_max_total_tokens gauge\ntgi_batch_max_total_tokens 8000\n# TYPE tgi_request_success counter\n"
        'tgi_request_success{kind="full"} 5\n# TYPE tgi_request_queue_duration histogram\n'
        "tgi_request_queue_duration_sum 1.5\ntgi_request_queue_duration_count 5\n"
    )
    assert told(read("tgi", page)) == {
        "taken_ms": 5.0,
        "running": 9.0,
        "waiting": 3.0,
        "kv_usage": 0.25,
        "kv_capacity_tokens": 8000,
        "requests_succeeded": 5.0,
        "queue_time": HistogramTotals(1.5, 5.0),
    }
    assert read("tgi", "tgi_batch_current_max_tokens 5\ntgi_batch_max_total_tokens 0\n").kv_usage is None


def test_lmdeploy():
    labels = '{engine="0",model_name="m"}'
    page = "".join(
        f"{name}{labels} {value}\n"
        for name, value in {
            "lmdeploy:num_requests_running": 4,
            "lmdeploy:num_requests_waiting": 2,
            "lmdeploy:num_api_requests_waiting": 3,
            "lmdeploy:gpu_cache_usage_perc": 0.6,
            "lmdeploy:prompt_tokens_total": 100,
            "lmdeploy:generation_tokens_total": 50,
            "lmdeploy:cached_tokens_total": 10,
            "lmdeploy:num_requests_succeeded": 6,
            "lmdeploy:time_to_first_token_seconds_sum": 0.5,
            "lmdeploy:time_to_first_token_seconds_count": 6,
            "lmdeploy:time_per_output_token_seconds_sum": 1.5,
            "lmdeploy:time_per_output_token_seconds_count": 44,
        }.items()
    )
    assert told(read("lmdeploy", page)) == {
        "taken_ms": 5.0,
        "running": 4.0,
        "waiting": 5.0,
        "kv_usage": 0.6,
        "prompt_tokens": 100.0,
        "generated_tokens": 50.0,
        "cached_prompt_tokens": 10.0,
        "cache_queried_tokens": 100.0,
        "requests_succeeded": 6.0,
        "ttft": HistogramTotals(0.5, 6.0),
        "inter_token": HistogramTotals(1.5, 44.0),
    }


def test_llamacpp():
    page = (
        "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total 30\n"
        "# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total 12\n"
        "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 1\n"
        "# TYPE llamacpp:requests_deferred gauge\nllamacpp:requests_deferred 2\n"
    )
    assert told(read("llamacpp", page)) == {
        "taken_ms": 5.0,
        "running": 1.0,
        "waiting": 2.0,
        "prompt_tokens": 30.0,
        "generated_tokens": 12.0,
    }
    assert read("llamacpp", "llamacpp:kv_cache_usage_ratio 0.5\n").kv_usage == 0.5


def test_an_unknown_engine_is_refused_with_the_names_of_the_known():
    with pytest.raises(ConfigurationError) as error:
        engine_named("vlm", where="endpoints[0].engine")
    assert str(error.value) == (
        "endpoints[0].engine: unknown engine 'vlm'; one of llamacpp, lmdeploy, sglang, tgi, triton, "
        "triton-tensorrt-llm, trtllm-serve, vllm"
    )


def test_every_reading_is_a_field_of_the_sample():
    for engine in BUILTIN.values():
        assert set(engine.readings) <= set(EngineSample.__struct_fields__)
        assert engine.rarely <= set(engine.readings)


def test_a_users_own_names():
    engine = engine_from_specs(
        EngineSpecs(
            name="house",
            queued_requests_spec='q{kind="waiting"}',
            running_requests_spec="r",
            kv_usage_spec="kv",
            lora_spec="lora_info",
            cache_info_spec="cfg",
            cache_block_size_label_name="bs",
            cache_num_blocks_label_name="n",
            custom_metrics=(CustomMetric("temperature", "gpu_temp{gpu=0}"), CustomMetric("absent", "nothing")),
        ),
        BUILTIN,
    )
    page = (
        'q{kind="waiting"} 3\nq{kind="other"} 9\nr 2\nkv 0.5\ncfg{bs="16",n="10"} 1\n'
        'gpu_temp{gpu="0"} 71\ngpu_temp{gpu="1"} 99\n'
        'lora_info{max_lora="3",running_lora_adapters="a",waiting_lora_adapters=""} 5\n'
    )
    sample, _ = PageReader(engine).read(page.encode(), 5.0)
    assert told(sample) == {
        "taken_ms": 5.0,
        "waiting": 3.0,
        "running": 2.0,
        "kv_usage": 0.5,
        "block_tokens": 16,
        "kv_capacity_tokens": 160,
        "max_adapters": 3,
        "active_adapters": ("a",),
        "waiting_adapters": (),
        "attributes": {"temperature": 71.0},
    }
    assert engine_named("house", engines_with([engine])) is engine


def test_a_users_names_replace_only_those_given():
    engine = engine_from_specs(
        EngineSpecs(
            name="vllm", queued_requests_spec="my_queue", cache_block_size_spec="bs", cache_num_blocks_spec="nb"
        ),
        BUILTIN,
    )
    sample, _ = PageReader(engine).read(b"my_queue 8\nvllm:num_requests_running 2\nbs 8\nnb 100\n", 5.0)
    assert (sample.waiting, sample.running, sample.block_tokens, sample.kv_capacity_tokens) == (8.0, 2.0, 8, 800)
    assert engine.selects_by_name


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (EngineSpecs(name="x"), "engineConfigs[x]: no metric is named, and 'x' is no built-in engine"),
        (EngineSpecs(name=""), "engineConfigs: an entry without a name"),
        (EngineSpecs(name="x", kv_usage_spec="a{b"), "engineConfigs[x].kvUsageSpec: 'a{b' has no label=value at 'b'"),
    ],
)
def test_bad_custom_engines(specs, message):
    with pytest.raises(ConfigurationError) as error:
        engine_from_specs(specs, BUILTIN)
    assert str(error.value).startswith(message)


def test_nothing_is_infinite():
    for name in ("metrics-busy-lora.txt", "metrics-kv-pressure.txt", "metrics-dp2-multiproc.txt"):
        for value in told(read("vllm", recorded(name))).values():
            assert not isinstance(value, float) or math.isfinite(value)
