"""Answers as vLLM writes them: a stream of events, one JSON object, or embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import xxhash
from typing_extensions import override

from poolpilot_lab.engine.generation import Answer, Limits
from poolpilot_lab.engine.http import chunk
from poolpilot_lab.engine.model import Sequence, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolpilot_lab.engine.api import Generation
    from poolpilot_lab.engine.http import Exchange

FINGERPRINT = "vllm-0.32.0-standin"

EMBEDDING_DIMENSIONS = 32

_DONE = chunk(b"data: [DONE]\n\n")


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
        kind = "chat.completion.chunk" if request.kind.chat else "text_completion"
        head = {"id": self.id, "object": kind, "created": self.created, "model": model}
        self._head = b"data: " + msgspec.json.encode(head)[:-1]
        self._openings = [self._opening(position) for position in range(len(built))]
        if request.kind.chat:
            self._middle = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
        else:
            self._middle = (
                b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
            )
        self._closing = b"}\n\n" if request.kind.chat else b',"usage":null}\n\n'

    def _opening(self, position: int) -> bytes:
        start = self._head + b',"choices":[{"index":%d,' % position
        return start + (b'"delta":{"content":"' if self.request.kind.chat else b'"text":"')

    def begin(self) -> None:
        """Sends the headers: before the first token, as vLLM does."""
        self.exchange.begin(200, "text/event-stream; charset=utf-8")

    @override
    def progress(self, position: int, sequence: Sequence) -> None:
        generated = sequence.generated
        piece = self.pieces[position][generated - 1]
        if sequence.state is State.FINISHED:
            self._finish(position, sequence, piece)
            return
        closing = self._usage_so_far() if self.request.continuous_usage else self._closing
        event = chunk(self._openings[position] + piece + self._middle + closing)
        if generated == 1 and self.request.kind.chat:
            event = self._role(position) + event
        self.exchange.send(event)

    def _role(self, position: int) -> bytes:
        return chunk(
            self._head + b',"choices":[{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n' % position
        )

    def _usage_so_far(self) -> bytes:
        return b',"usage":' + msgspec.json.encode(self.usage()) + b"}\n\n"

    def _finish(self, position: int, sequence: Sequence, piece: bytes) -> None:
        self.unfinished -= 1
        reason = sequence.stop_reason.encode()
        if self.request.kind.chat:
            tail = b'"},"logprobs":null,"finish_reason":"%s","stop_reason":null,"token_ids":null}]' % reason
        else:
            tail = (
                b'","logprobs":null,"finish_reason":"%s","stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
                % reason
            )
        if self.request.continuous_usage:
            closing = self._usage_so_far()
        elif self.request.include_usage:
            closing = self._closing
        else:
            closing = b',"system_fingerprint":"%s"' % FINGERPRINT.encode() + self._closing
        data = chunk(self._openings[position] + piece + tail + closing)
        if sequence.generated == 1 and self.request.kind.chat:
            data = self._role(position) + data
        if self.unfinished:
            self.exchange.send(data)
            return
        if self.request.include_usage:
            usage = {"choices": [], "usage": self.usage(), "system_fingerprint": FINGERPRINT}
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
        self.unfinished -= 1
        if self.unfinished == 0:
            body = self._chat() if self.request.kind.chat else self._completion()
            self.exchange.respond(200, msgspec.json.encode(body), headers=self._load_report())

    def _texts(self) -> list[tuple[int, str, str]]:
        return [
            (position, b"".join(pieces).decode(), sequence.stop_reason)
            for position, (pieces, sequence) in enumerate(zip(self.pieces, self.sequences, strict=True))
        ]

    def _whole_usage(self) -> dict[str, Any]:
        usage = self.usage()
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
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
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
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self._whole_usage(),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }


class EmbeddingAnswer(Answer):
    """One vector per prompt, when every prompt is computed."""

    @override
    def progress(self, position: int, sequence: Sequence) -> None:
        self.unfinished -= 1
        if self.unfinished:
            return
        data = [
            {"index": index, "object": "embedding", "embedding": _vector(prompt.data)}
            for index, prompt in enumerate(self.request.prompts)
        ]
        tokens = sum(sequence.prompt_tokens for sequence in self.sequences)
        usage = {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        }
        body = {
            "id": self.id,
            "object": "list",
            "created": self.created,
            "model": self.model,
            "data": data,
            "usage": usage,
        }
        self.exchange.respond(200, msgspec.json.encode(body))


def _vector(text: bytes) -> list[float]:
    """A vector that depends on the text and means nothing."""
    return [xxhash.xxh3_64_intdigest(text, dimension) / 2**63 - 1.0 for dimension in range(EMBEDDING_DIMENSIONS)]
