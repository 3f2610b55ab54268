"""The command line becomes the configuration it says."""

import pytest

from poolpilot_lab.engine.faults import Faults
from poolpilot_lab.engine.model import Variation
from poolpilot_lab.engine.models import Adapter
from poolpilot_lab.engine.options import EngineConfig, OptionsError, read_config
from poolpilot_lab.engine.server import main


def test_defaults_come_from_the_profile() -> None:
    config = read_config([], {})
    assert config == EngineConfig()
    assert config.names == ("meta-llama/Llama-3.1-8B",)
    assert (config.gpu_blocks, config.context) == (27_501, 32_768)
    settings = config.engine_settings()
    assert (settings.block_size, settings.max_num_batched_tokens, settings.max_num_seqs) == (16, 2048, 256)
    assert settings.max_loras == 0


def test_flags_have_vllms_names() -> None:
    config = read_config(
        [
            *("--host", "0.0.0.0", "--port", "0", "--model", "org/m", "--served-model-name", "a", "b"),
            *("--max-model-len", "4096", "--max-num-seqs", "9", "--max-num-batched-tokens", "512"),
            *("--block-size", "32", "--num-gpu-blocks-override", "300", "--no-enable-prefix-caching"),
            *("--enable-lora", "--max-loras", "2", "--lora-modules", "x=/x", '{"name": "y", "path": "/y"}'),
            *("--api-key", "k1", "k2", "--seed", "5", "--shutdown-timeout", "1.5"),
            *("--no-enable-prompt-tokens-details", "--profile", "llama-3.1-8b-l40s", "--variation", "0.2"),
            *("--step-noise", "0.1", "--time-scale", "0.5", "--lora-load-ms", "80", "--instance", "e1"),
            *("--fault", "slow=2", "--fault", "metrics-hang"),
        ],
        {},
    )
    assert (config.host, config.port, config.model, config.names) == ("0.0.0.0", 0, "org/m", ("a", "b"))
    assert (config.context, config.gpu_blocks, config.size_of_block) == (4096, 300, 32)
    assert config.lora_modules == (Adapter("x", "/x"), Adapter("y", "/y"))
    assert (config.api_keys, config.seed, config.shutdown_timeout) == (("k1", "k2"), 5, 1.5)
    assert (config.variation.sigma, config.variation.step_noise) == (0.2, 0.1)
    assert config.faults == Faults(slow=2.0, metrics_hang=True)
    assert (config.enable_prompt_tokens_details, config.instance) == (False, "e1")
    settings = config.engine_settings()
    assert (settings.max_loras, settings.lora_load_ms, settings.enable_prefix_caching) == (2, 40.0, False)


def test_runtime_lora_updating_is_vllms_variable_or_a_flag() -> None:
    assert not read_config([], {}).runtime_lora
    assert not read_config([], {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0"}).runtime_lora
    assert read_config([], {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true"}).runtime_lora
    assert read_config(["--allow-runtime-lora-updating"], {}).runtime_lora


def test_the_api_key_is_a_flag_or_vllms_variable() -> None:
    assert read_config([], {"VLLM_API_KEY": "k"}).api_keys == ("k",)
    assert read_config(["--api-key", "a"], {"VLLM_API_KEY": "k"}).api_keys == ("a",)


def test_every_time_is_scaled() -> None:
    config = read_config(["--time-scale", "0.1", "--stall-every-ms", "1000", "--stall-ms", "50"], {})
    assert config.engine_variation() == Variation(stall_every_ms=100.0, stall_ms=5.0)
    assert config.engine_settings().lora_load_ms == 50.0


def test_kv_tokens_make_a_small_engine() -> None:
    config = read_config(["--kv-tokens", "16000"], {})
    assert (config.gpu_blocks, config.context) == (1001, 16_000)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--time-scale", "0"], "time_scale: 0 is out of range"),
        (["--variation", "9"], "variation: 9 is out of range, allowed are 0 to 2"),
        (["--kv-tokens", "1000", "--max-model-len", "2000"], "max_model_len: 2000 is out of range"),
        (["--fault", "restart=1"], "only at run time"),
        (["--enable-lora", "--served-model-name", "a", "--lora-modules", "a=/a"], "'a' is the name of the base model"),
    ],
)
def test_what_cannot_work_is_refused(flags: list[str], says: str) -> None:
    with pytest.raises(OptionsError, match=says):
        read_config(flags, {})


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--max-num-seqs", "0"], "max_num_seqs: 0 is out of range, allowed are 1 to"),
        (["--max-model-len", "999999999"], "max_model_len"),
        (["--fault", "explode"], "fault 'explode' is unknown; allowed: slow=FACTOR"),
        (["--lora-modules", "a=/a"], "adapters need enable_lora"),
        (["--enable-lora", "--lora-modules", "a"], "expected name=path"),
        (["--kv-tokens", "100", "--num-gpu-blocks-override", "3"], "only one of them"),
    ],
)
def test_the_command_names_a_wrong_option_and_exits_2(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--profile", "b200"], ["--ports", "1"], ["--port", "x"]])
def test_what_argparse_refuses_exits_2(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(flags)
    assert error.value.code == 2
