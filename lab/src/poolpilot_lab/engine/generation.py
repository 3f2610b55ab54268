"""One inference request in progress: the sequences it becomes in the engine, and what all its answers share."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from poolpilot_lab.engine import prose, tokens
from poolpilot_lab.engine.errors import BadRequestError
from poolpilot_lab.engine.model import Sequence

if TYPE_CHECKING:
    from poolpilot_lab.engine.api import Generation
    from poolpilot_lab.engine.http import Exchange


@dataclass(frozen=True, slots=True)
class Limits:
    """What sequences may be, and how long answers are by nature."""

    block_size: int
    longest: int
    """tokens of one sequence, prompt and answer"""
    prefix_caching: bool
    output_median: float
    output_sigma: float
    prompt_details: bool
    """whether usage tells the cached tokens"""


def build_sequences(
    request: Generation, adapter: str | None, fixed_output: int | None, limits: Limits
) -> list[tuple[Sequence, list[bytes]]]:
    """The engine's sequences of a request with the pieces each will generate; raises BadRequestError if too long.

    fixed_output: the length that a test client asked for, None for the natural one.
    """
    built = []
    root = tokens.root_key(adapter, request.cache_salt)
    for prompt in request.prompts:
        room = _room(request, prompt.tokens, limits.longest)
        for index in range(request.choices):
            key = xxhash.xxh3_64_intdigest(prompt.data, (request.seed * 131 + index) & (2**64 - 1))
            length, reason = _output(request, key, fixed_output, room, limits)
            pieces = prose.answer(key, length, after_space=request.kind.chat)
            keys = tokens.block_keys(prompt, pieces, limits.block_size, root) if limits.prefix_caching else []
            built.append(
                (
                    Sequence(
                        prompt_tokens=prompt.tokens,
                        output_tokens=length,
                        block_hashes=keys,
                        adapter=adapter,
                        max_tokens=request.max_tokens,
                        choices=request.choices,
                        stop_reason=reason,
                    ),
                    pieces,
                )
            )
    return built


def _room(request: Generation, prompt_tokens: int, longest: int) -> int:
    """Tokens that the answer may have by the context length; raises BadRequestError in vLLM's words."""
    if prompt_tokens >= longest:
        raise BadRequestError(
            f"This model's maximum context length is {longest} tokens. However, your prompt contains {prompt_tokens} "
            "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
            f"input prompt. (parameter=input_tokens, value={prompt_tokens})",
            "input_tokens",
        )
    wanted = request.max_tokens
    if wanted is not None and prompt_tokens + wanted > longest:
        raise BadRequestError(
            f"This model's maximum context length is {longest} tokens. However, you requested {wanted} output tokens "
            f"and your prompt contains {prompt_tokens} input tokens, for a total of {prompt_tokens + wanted} tokens. "
            "Please reduce the length of the input prompt or the number of requested output tokens. "
            f"(parameter=input_tokens, value={prompt_tokens})",
            "input_tokens",
        )
    return longest - prompt_tokens


def _output(request: Generation, key: int, fixed: int | None, room: int, limits: Limits) -> tuple[int, str]:
    limit = request.max_tokens
    if limit is None and fixed is None:
        limit = request.default_max_tokens
    cap = room if limit is None else min(limit, room)
    if request.ignore_eos:
        return cap, "length"
    natural = fixed if fixed is not None else prose.natural_length(key, limits.output_median, limits.output_sigma)
    natural = max(natural, request.min_tokens)
    return (natural, "stop") if natural <= cap else (cap, "length")


class Answer:
    """What stream and whole answers share. The engine's driver calls `progress` once per token of each sequence."""

    def __init__(
        self,
        exchange: Exchange,
        request: Generation,
        model: str,
        built: list[tuple[Sequence, list[bytes]]],
        limits: Limits,
    ) -> None:
        self.exchange = exchange
        self.sequences = [sequence for sequence, _ in built]
        self.pieces = [pieces for _, pieces in built]
        self.request = request
        self.model = model
        self._details = limits.prompt_details
        self.unfinished = len(built)
        self.created = int(time.time())
        self.id = request.kind.id_prefix + (exchange.headers.get("x-request-id") or os.urandom(8).hex())
        for position, sequence in enumerate(self.sequences):
            sequence.tag = (self, position)

    @property
    def done(self) -> bool:
        """Whether every sequence has ended."""
        return self.unfinished == 0

    def progress(self, position: int, sequence: Sequence) -> None:
        """The sequence at `position` has one token more."""
        raise NotImplementedError

    def usage(self) -> dict[str, Any]:
        """The `usage` object so far; with several choices the prompt counts once."""
        choices = self.request.choices
        prompt = sum(sequence.prompt_tokens for sequence in self.sequences[::choices])
        completion = sum(sequence.generated for sequence in self.sequences)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        if self._details:
            cached = sum(sequence.cached_tokens for sequence in self.sequences[::choices])
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage
