"""Configuration of one stand-in engine, and the command line that makes it. Flags are vLLM's where vLLM has one."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field, replace

from poolpilot_lab.engine.errors import ApiError
from poolpilot_lab.engine.faults import FaultError, Faults, parse_faults
from poolpilot_lab.engine.model import PROFILES, EngineSettings, Profile, Variation
from poolpilot_lab.engine.models import Adapter, parse_lora_module

DEFAULT_PROFILE = "llama-3.1-8b-h100"
RUNTIME_LORA_VARIABLE = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
API_KEY_VARIABLE = "VLLM_API_KEY"


class OptionsError(ValueError):
    """A configuration that cannot work; the message names the option and what is allowed. Exit code 2."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine. Everything has a default; unset model values come from the profile."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one"""
    profile: Profile = field(default_factory=lambda: PROFILES[DEFAULT_PROFILE])
    model: str | None = None
    served_model_names: tuple[str, ...] = ()
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    enable_prompt_tokens_details: bool = True
    enable_lora: bool = False
    max_loras: int = 1
    lora_modules: tuple[Adapter, ...] = ()
    lora_load_ms: float = 500.0
    runtime_lora: bool = False
    api_keys: tuple[str, ...] = ()
    shutdown_timeout: float = 0.0
    seed: int = 0
    variation: Variation = field(default_factory=Variation)
    time_scale: float = 1.0
    output_median: float = 150.0
    output_sigma: float = 0.8
    faults: Faults = field(default_factory=Faults)
    instance: str | None = None

    def __post_init__(self) -> None:
        """Raises OptionsError for what cannot work."""
        _between("port", self.port, 0, 65535)
        _between("max_num_seqs", self.max_num_seqs, 1, 1_000_000)
        _between("max_num_batched_tokens", self.max_num_batched_tokens, 1, 10_000_000)
        _between("block_size", self.size_of_block, 1, 4096)
        _between("num_gpu_blocks_override", self.gpu_blocks, 2, 100_000_000)
        _between("max_loras", self.max_loras, 1, 10_000)
        _between("lora_load_ms", self.lora_load_ms, 0.0, 1e9)
        _between("shutdown_timeout", self.shutdown_timeout, 0.0, 1e6)
        _between("time_scale", self.time_scale, 1e-4, 1e4)
        _between("output_median", self.output_median, 1.0, 1e6)
        _between("output_sigma", self.output_sigma, 0.0, 5.0)
        _between("variation", self.variation.sigma, 0.0, 2.0)
        _between("step_noise", self.variation.step_noise, 0.0, 2.0)
        room = (self.gpu_blocks - 1) * self.size_of_block
        _between("max_model_len", self.context, 2, room)
        if self.lora_modules and not self.enable_lora:
            raise OptionsError("lora_modules: adapters need enable_lora")
        for adapter in self.lora_modules:
            if adapter.name in self.names:
                raise OptionsError(f"lora_modules: {adapter.name!r} is the name of the base model")
        if self.faults.restart_s is not None:
            raise OptionsError("fault restart: only at run time, through POST /fault")

    @property
    def size_of_block(self) -> int:
        """Tokens per KV block; vLLM's default is 16."""
        return 16 if self.block_size is None else self.block_size

    @property
    def gpu_blocks(self) -> int:
        """KV blocks, vLLM's null block included."""
        override = self.num_gpu_blocks_override
        return override if override is not None else self.profile.kv_tokens // self.size_of_block + 1

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""
        if self.max_model_len is not None:
            return self.max_model_len
        return min(32_768, (self.gpu_blocks - 1) * self.size_of_block)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the base model."""
        return self.served_model_names or (self.model or self.profile.model,)

    def engine_variation(self) -> Variation:
        """Hidden variation with its times scaled."""
        return replace(
            self.variation,
            stall_every_ms=self.variation.stall_every_ms * self.time_scale,
            stall_ms=self.variation.stall_ms * self.time_scale,
        )

    def engine_settings(self) -> EngineSettings:
        """What the engine model needs; times are already scaled."""
        return EngineSettings(
            num_gpu_blocks=self.gpu_blocks,
            block_size=self.size_of_block,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.context,
            enable_prefix_caching=self.enable_prefix_caching,
            max_loras=self.max_loras if self.enable_lora else 0,
            lora_load_ms=self.lora_load_ms * self.time_scale,
        )


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise OptionsError(f"{name}: {value:g} is out of range, allowed are {low:g} to {high:g}")


def parser() -> argparse.ArgumentParser:
    """The command line of `poolpilot engine`."""
    top = argparse.ArgumentParser(
        prog="poolpilot engine",
        description="A stand-in vLLM server: real HTTP and metrics, simulated accelerator.",
        allow_abbrev=False,
    )
    like = top.add_argument_group("as in vLLM")
    like.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    like.add_argument("--port", type=int, default=8000, help="port; 0 takes a free one (default: %(default)s)")
    like.add_argument("--model", help="model that /v1/models gives as root (default: the profile's)")
    like.add_argument("--served-model-name", nargs="+", default=[], metavar="NAME", help="names clients use for it")
    like.add_argument("--max-model-len", type=int, metavar="TOKENS", help="longest sequence (default: 32768 or the KV)")
    like.add_argument("--max-num-seqs", type=int, default=256, metavar="N", help="running sequences (default: 256)")
    like.add_argument("--max-num-batched-tokens", type=int, default=2048, metavar="N", help="per step (default: 2048)")
    like.add_argument("--block-size", type=int, metavar="TOKENS", help="per KV block (default: 16)")
    like.add_argument("--num-gpu-blocks-override", type=int, metavar="N", help="KV blocks (default: the profile's)")
    like.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    like.add_argument(
        "--enable-prompt-tokens-details",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="usage tells cached_tokens (default here: yes; in vLLM: no)",
    )
    like.add_argument("--enable-lora", action=argparse.BooleanOptionalAction, default=False)
    like.add_argument("--max-loras", type=int, default=1, metavar="N", help="adapter slots (default: 1)")
    like.add_argument("--lora-modules", nargs="+", default=[], metavar="NAME=PATH", help="adapters known at the start")
    like.add_argument(
        "--api-key", nargs="+", default=[], metavar="KEY", help=f"required on /v1 paths (also: {API_KEY_VARIABLE})"
    )
    like.add_argument(
        "--shutdown-timeout", type=float, default=0.0, metavar="S", help="for running requests (default: 0)"
    )
    like.add_argument("--seed", type=int, default=0, help="of hidden variation, noise and faults (default: 0)")
    ours = top.add_argument_group("of the stand-in")
    ours.add_argument("--profile", default=DEFAULT_PROFILE, choices=sorted(PROFILES), help="default: %(default)s")
    ours.add_argument("--kv-tokens", type=int, metavar="N", help="KV capacity instead of the profile's")
    ours.add_argument("--variation", type=float, default=0.0, metavar="SIGMA", help="hidden speed factors (default: 0)")
    ours.add_argument("--step-noise", type=float, default=0.0, metavar="SIGMA", help="per step (default: 0)")
    ours.add_argument(
        "--stall-every-ms", type=float, default=0.0, metavar="MS", help="mean gap between stalls (0: none)"
    )
    ours.add_argument("--stall-ms", type=float, default=0.0, metavar="MS", help="mean length of a stall")
    ours.add_argument("--lora-load-ms", type=float, default=500.0, metavar="MS", help="adapter load (default: 500)")
    ours.add_argument(
        "--allow-runtime-lora-updating",
        action="store_true",
        help=f"LoRA routes exist (also: {RUNTIME_LORA_VARIABLE}=1, as in vLLM)",
    )
    ours.add_argument("--time-scale", type=float, default=1.0, metavar="X", help="0.1 is ten times faster (default: 1)")
    ours.add_argument("--output-median", type=float, default=150.0, metavar="N", help="natural answer (default: 150)")
    ours.add_argument(
        "--output-sigma", type=float, default=0.8, metavar="S", help="its lognormal spread (default: 0.8)"
    )
    ours.add_argument("--fault", action="append", default=[], metavar="FAULT", help="slow=2.0, error-rate=0.1:503, …")
    ours.add_argument("--instance", metavar="NAME", help="sent with every answer as x-engine-instance")
    return top


def read_config(argv: list[str], environment: dict[str, str] | None = None) -> EngineConfig:
    """Reads a command line; raises OptionsError. (argparse itself exits on an unknown flag.)"""
    values = parser().parse_args(argv)
    variables = os.environ if environment is None else environment
    profile = PROFILES[values.profile]
    blocks = values.num_gpu_blocks_override
    if values.kv_tokens is not None:
        if blocks is not None:
            raise OptionsError("kv-tokens and num-gpu-blocks-override: only one of them may be given")
        blocks = values.kv_tokens // (values.block_size or 16) + 1
    try:
        adapters = tuple(parse_lora_module(text) for text in values.lora_modules)
        faults = parse_faults(values.fault)
    except (ApiError, FaultError) as error:
        raise OptionsError(str(error)) from None
    return EngineConfig(
        host=values.host,
        port=values.port,
        profile=profile,
        model=values.model,
        served_model_names=tuple(values.served_model_name),
        max_model_len=values.max_model_len,
        max_num_seqs=values.max_num_seqs,
        max_num_batched_tokens=values.max_num_batched_tokens,
        block_size=values.block_size,
        num_gpu_blocks_override=blocks,
        enable_prefix_caching=values.enable_prefix_caching,
        enable_prompt_tokens_details=values.enable_prompt_tokens_details,
        enable_lora=values.enable_lora,
        max_loras=values.max_loras,
        lora_modules=adapters,
        lora_load_ms=values.lora_load_ms,
        runtime_lora=values.allow_runtime_lora_updating
        or variables.get(RUNTIME_LORA_VARIABLE) in {"1", "true", "True"},
        api_keys=tuple(values.api_key or ([variables[API_KEY_VARIABLE]] if variables.get(API_KEY_VARIABLE) else [])),
        shutdown_timeout=values.shutdown_timeout,
        seed=values.seed,
        variation=Variation(values.variation, values.step_noise, values.stall_every_ms, values.stall_ms),
        time_scale=values.time_scale,
        output_median=values.output_median,
        output_sigma=values.output_sigma,
        faults=faults,
        instance=values.instance,
    )
