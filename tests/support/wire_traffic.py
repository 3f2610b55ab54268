"""Bytes of a data plane: exchanges as Envoy puts them on the wire, without a client that would cost time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from poolpilot_picker.extproc.wire import frames
from poolpilot_picker.extproc.wire.hpack import encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HELLO = frames.PREFACE + frames.settings([(4, 2**28)]) + frames.window_update(0, 2**30) + frames.SETTINGS_ACK
BLOCK = encode(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
        (b":authority", b"picker"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
)
FILTER = "envoy.filters.http.ext_proc"
NONE, BUFFERED_PARTIAL, DUPLEX = 0, 3, 4


def chat(text: str = "Tell me of the sea", model: str = "m") -> bytes:
    """A chat body of about 1 KB."""
    messages = [{"role": "system", "content": "You are a helpful assistant. " * 30}, {"role": "user", "content": text}]
    return msgspec.json.encode({"model": model, "messages": messages})


class DataPlane:
    """Writes exchanges on one connection. `address`: of the pod that serves."""

    def __init__(self, address: str = "10.0.0.1:8000", *, request: int = DUPLEX, response: int = DUPLEX) -> None:
        self._address = address
        self._modes = request, response
        self._next = 1

    def exchange(
        self, number: int, *, chunks: int = 1, body: bytes | None = None, reset: str = "end"
    ) -> Iterator[bytes]:
        """Reads of the picker's socket, one after the other, in one exchange.

        `reset`: where the client gives up ("head", "body", "answer"), or "end" for an exchange that comes to its end,
        which Envoy ends with a reset in full duplex.
        """
        stream, self._next = self._next, self._next + 2
        sent = chat() if body is None else body
        yield frames.frame(frames.HEADERS, frames.END_HEADERS, stream, BLOCK) + self._head(stream, number, len(sent))
        if reset != "head":
            yield self._request_body(stream, sent)
        if reset in ("answer", "end"):
            yield self._answer(stream)
        if reset == "end" and self._modes[1] == DUPLEX:
            for _ in range(chunks):
                yield self._message(stream, {"response_body": {"body": b"data: " + b"x" * 200 + b"\n\n"}})
            yield self._message(stream, {"response_body": {"end_of_stream": True}})
        if reset == "end" and self._modes[1] != DUPLEX:
            yield frames.frame(frames.DATA, frames.END_STREAM, stream)
        else:
            yield frames.rst_stream(stream, 8)

    def _head(self, stream: int, number: int, length: int) -> bytes:
        fields = {
            ":authority": "127.0.0.1:50557",
            ":path": "/v1/chat/completions",
            ":method": "POST",
            ":scheme": "http",
            "user-agent": "client/1.1",
            "content-length": str(length),
            "content-type": "application/json",
            "x-forwarded-proto": "http",
            "x-request-id": f"5d00050d-e21b-425a-a28d-{number:012d}",
        }
        attributes = {"xds.cluster_name": "pool", "xds.route_name": ""}
        return self._message(stream, {"request_headers": fields}, attributes=attributes, first=True)

    def _request_body(self, stream: int, body: bytes) -> bytes:
        if self._modes[0] != DUPLEX:
            return self._message(stream, {"request_body": {"body": body, "end_of_stream": True}})
        pieces = [body[at : at + 16_000] for at in range(0, len(body), 16_000)]
        parts = [self._message(stream, {"request_body": {"body": piece}}) for piece in pieces]
        return b"".join(parts) + self._message(stream, {"request_body": {"end_of_stream": True}})

    def _answer(self, stream: int) -> bytes:
        fields = {
            ":status": "200",
            "content-type": "application/json",
            "date": "Sun, 29 Nov 2026 16:35:07 GMT",
            "content-length": "222",
        }
        attributes = {
            "response.code_details": "via_upstream",
            "upstream.address": self._address,
            "upstream.request_attempt_count": 1,
        }
        return self._message(stream, {"response_headers": fields}, attributes=attributes, served=self._address)

    def _message(
        self,
        stream: int,
        what: Mapping[str, Mapping[str, Any]],
        *,
        attributes: Mapping[str, Any] | None = None,
        served: str = "",
        first: bool = False,
    ) -> bytes:
        message = ext_proc.ProcessingRequest()
        for kind, content in what.items():
            part = getattr(message, kind)
            if kind.endswith("body"):
                part.body, part.end_of_stream = content.get("body", b""), content.get("end_of_stream", False)
                continue
            for name, value in content.items():
                field = part.headers.headers.add()
                field.key, field.raw_value = name, value.encode()
        if attributes:
            message.attributes[FILTER].update(attributes)
        message.metadata_context.SetInParent()
        if served:
            message.metadata_context.filter_metadata["envoy.lb"]["x-gateway-destination-endpoint-served"] = served
        if first:
            config = message.protocol_config
            config.request_body_mode, config.response_body_mode = self._modes
        data = message.SerializeToString(deterministic=True)
        payload = b"\0" + len(data).to_bytes(4, "big") + data
        return b"".join(
            frames.frame(frames.DATA, 0, stream, payload[at : at + 16_384]) for at in range(0, len(payload), 16_384)
        )
