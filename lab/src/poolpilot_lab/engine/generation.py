"""One inference request in progress: its sequences in the engine, and the answer as it is written."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash
from typing_extensions import override

from poolpilot_lab.engine import prose, tokens
from poolpilot_lab.engine.errors import BadRequestError
from poolpilot_lab.engine.http import chunk
from poolpilot_lab.engine.model import Sequence, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.engine.api import Generation
    from poolpilot_lab.engine.http import Exchange

FINGERPRINT = "vllm-0.32.0-standin"

_DONE = chunk(b"data: [DONE]\n\n")


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
            pieces = prose.answer(key, length, after_space=request.chat)
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
        self._pieces = [pieces for _, pieces in built]
        self._request = request
        self._model = model
        self._details = limits.prompt_details
        self._unfinished = len(built)
        self._created = int(time.time())
        prefix = "chatcmpl-" if request.chat else "cmpl-"
        self._id = prefix + (exchange.headers.get("x-request-id") or os.urandom(8).hex())
        for position, sequence in enumerate(self.sequences):
            sequence.tag = (self, position)

    @property
    def done(self) -> bool:
        """Whether every sequence has ended."""
        return self._unfinished == 0

    def progress(self, position: int, sequence: Sequence) -> None:
        """The sequence at `position` has one token more."""
        raise NotImplementedError

    def _usage(self) -> dict[str, Any]:
        choices = self._request.choices
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


class StreamAnswer(Answer):
    """Server-sent events, one per token, their constant bytes formatted once."""

    def __init__(
        self,
        exchange: Exchange,
        request: Generation,
        model: str,
        built: list[tuple[Sequence, list[bytes]]],
        limits: Limits,
    ) -> None:
        super().__init__(exchange, request, model, built, limits)
        kind = "chat.completion.chunk" if request.chat else "text_completion"
        head = {"id": self._id, "object": kind, "created": self._created, "model": model}
        self._head = b"data: " + msgspec.json.encode(head)[:-1]
        self._openings = [self._opening(position) for position in range(len(built))]
        if request.chat:
            self._middle = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
        else:
            self._middle = (
                b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
            )
        self._closing = b"}\n\n" if request.chat else b',"usage":null}\n\n'

    def _opening(self, position: int) -> bytes:
        start = self._head + b',"choices":[{"index":%d,' % position
        return start + (b'"delta":{"content":"' if self._request.chat else b'"text":"')

    def begin(self) -> None:
        """Sends the headers: before the first token, as vLLM does."""
        self.exchange.begin(200, "text/event-stream; charset=utf-8")

    @override
    def progress(self, position: int, sequence: Sequence) -> None:
        generated = sequence.generated
        piece = self._pieces[position][generated - 1]
        if sequence.state is State.FINISHED:
            self._finish(position, sequence, piece)
            return
        closing = self._usage_so_far() if self._request.continuous_usage else self._closing
        event = chunk(self._openings[position] + piece + self._middle + closing)
        if generated == 1 and self._request.chat:
            event = self._role(position) + event
        self.exchange.send(event)

    def _role(self, position: int) -> bytes:
        return chunk(
            self._head + b',"choices":[{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n' % position
        )

    def _usage_so_far(self) -> bytes:
        return b',"usage":' + msgspec.json.encode(self._usage()) + b"}\n\n"

    def _finish(self, position: int, sequence: Sequence, piece: bytes) -> None:
        self._unfinished -= 1
        reason = sequence.stop_reason.encode()
        if self._request.chat:
            tail = b'"},"logprobs":null,"finish_reason":"%s","stop_reason":null,"token_ids":null}]' % reason
        else:
            tail = (
                b'","logprobs":null,"finish_reason":"%s","stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
                % reason
            )
        if self._request.continuous_usage:
            closing = self._usage_so_far()
        elif self._request.include_usage:
            closing = self._closing
        else:
            closing = b',"system_fingerprint":"%s"' % FINGERPRINT.encode() + self._closing
        data = chunk(self._openings[position] + piece + tail + closing)
        if sequence.generated == 1 and self._request.chat:
            data = self._role(position) + data
        if self._unfinished:
            self.exchange.send(data)
            return
        if self._request.include_usage:
            usage = {"choices": [], "usage": self._usage(), "system_fingerprint": FINGERPRINT}
            data += chunk(self._head + b"," + msgspec.json.encode(usage)[1:] + b"\n\n")
        self.exchange.end(data + _DONE)


class WholeAnswer(Answer):
    """One JSON object when every sequence has ended."""

    def __init__(
        self,
        exchange: Exchange,
        request: Generation,
        model: str,
        built: list[tuple[Sequence, list[bytes]]],
        limits: Limits,
        load_report: Callable[[], tuple[tuple[str, str], ...]],
    ) -> None:
        super().__init__(exchange, request, model, built, limits)
        self._load_report = load_report

    @override
    def progress(self, position: int, sequence: Sequence) -> None:
        if sequence.state is not State.FINISHED:
            return
        self._unfinished -= 1
        if self._unfinished == 0:
            body = self._chat() if self._request.chat else self._completion()
            self.exchange.respond(200, msgspec.json.encode(body), headers=self._load_report())

    def _texts(self) -> list[tuple[int, str, str]]:
        return [
            (position, b"".join(pieces).decode(), sequence.stop_reason)
            for position, (pieces, sequence) in enumerate(zip(self._pieces, self.sequences, strict=True))
        ]

    def _whole_usage(self) -> dict[str, Any]:
        usage = self._usage()
        usage.setdefault("prompt_tokens_details", None)
        usage["completion_tokens_details"] = None
        return usage

    def _chat(self) -> dict[str, Any]:
        message = {
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        choices = [
            {
                "index": position,
                "message": {"role": "assistant", "content": text, **message},
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
            for position, text, reason in self._texts()
        ]
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self._whole_usage(),
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _completion(self) -> dict[str, Any]:
        choices = [
            {
                "index": position,
                "text": text,
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
            for position, text, reason in self._texts()
        ]
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self._whole_usage(),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
