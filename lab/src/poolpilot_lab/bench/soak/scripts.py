"""Exchanges as a data plane tells them, as bytes: made once, played many times with a number of their own. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from poolpilot_picker.extproc.wire.hpack import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NUMBER: Final = "@number@@@@@"
"""Stands for the exchange's number: 12 digits. Clients' request IDs, new prompts, names that nobody sent before."""
MARK: Final = NUMBER.encode()
SERVED: Final = "@address@:12345"
"""Stands for the endpoint that serves: 127.0.0.1 with a port of five digits."""
FILTER: Final = "envoy.filters.http.ext_proc"
NONE, BUFFERED, PARTIAL, DUPLEX = 0, 2, 3, 4
MODES: Final = ((DUPLEX, DUPLEX), (DUPLEX, NONE), (PARTIAL, NONE), (BUFFERED, NONE))
PIECE: Final = 16_000
"""Bytes of a chunk of a full duplex body."""
BREAKS: Final = ("head", "mid-body", "body", "placed", "answer", "mid-answer")
"""Where a client may break its exchange off: after the headers, within a message, before and after the pick, …"""
BODY_BYTES: Final = ((1_000, 0.78), (8_000, 0.14), (60_000, 0.07), (400_000, 0.009), (1_500_000, 0.001))


@dataclass(frozen=True, slots=True)
class Step:
    """Messages that are sent together, and how many replies they get before the next step."""

    messages: bytes
    """gRPC messages with their prefixes."""
    replies: int


@dataclass(frozen=True, slots=True)
class Script:
    """One kind of exchange. `broken`: where the client gives it up, after its last step; empty when it does not."""

    name: str
    steps: tuple[Step, ...]
    broken: str
    resets: bool
    """It ends with a reset (as full duplex does) and not with the end of the request."""
    echoed: int
    """Bytes of bodies that come back at least, in an exchange that is not broken."""

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        return sum(len(step.messages) for step in self.steps)


def header_block(*, traced: bool) -> bytes:
    """Of a call. `traced`: with a field that differs for each call, as a data plane with tracing sends."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
        (b":authority", b"picker"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    if traced:
        fields.append((b"traceparent", b"00-" + MARK + b"-01"))
    return encode(fields)


def bank(seed: int, count: int, broken_share: float, models: Sequence[str]) -> list[Script]:
    """`count` different scripts, of which `broken_share` are broken off; `models` are those of the endpoints."""
    rng = random.Random(seed)
    return [_script(rng, MODES[at % len(MODES)], rng.random() < broken_share, models) for at in range(count)]


def _script(rng: random.Random, modes: tuple[int, int], broken: bool, models: Sequence[str]) -> Script:
    duplex = modes[0] == DUPLEX
    where = rng.choice(BREAKS) if broken else ""
    body = _body(rng, models)
    bad = not broken and rng.random() < 0.01
    if bad:
        body = body[:-1]
    if not duplex and rng.random() < 0.05 and not broken:
        return _without_body(rng, modes)
    head = message({"request_headers": _request_fields(rng, len(body))}, modes=modes)
    pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)]
    chunks = [message({"request_body": {"body": piece}}) for piece in pieces] if duplex else []
    last = message({"request_body": {"body": b"" if duplex else body, "end_of_stream": True}})
    steps: list[Step] = []
    if duplex:
        steps.append(Step(b"".join((head, *chunks, last)), 1 if bad else 1 + len(pieces)))
    else:
        steps += (Step(head, 1), Step(last, 1))
    if where in ("head", "mid-body", "body"):
        sent = {"head": head, "mid-body": b"".join((head, *chunks, last)), "body": b"".join((head, *chunks, last))}
        cut = sent[where][: rng.randrange(len(head), len(sent[where]))] if where == "mid-body" else sent[where]
        return Script(f"{modes}-{where}", (Step(cut, 0),), where, resets=True, echoed=0)
    if bad:
        return Script(f"{modes}-bad", tuple(steps), "", resets=False, echoed=0)
    if where != "placed":
        steps.append(Step(_answer(rng), 1))
    if modes[1] == DUPLEX and where in ("", "mid-answer"):
        chunks_out = rng.choice((1, 2, 5, 20))
        steps += [Step(_chunk(rng.choice((30, 300, 3_000)), end=False), 1) for _ in range(chunks_out)]
        if not where:
            steps.append(Step(_chunk(0, end=True), 1))
    echoed = len(body) if duplex and not where else 0
    return Script(
        f"{modes}-{where or 'whole'}", tuple(steps), where, resets=modes[1] == DUPLEX or bool(where), echoed=echoed
    )


def _without_body(rng: random.Random, modes: tuple[int, int]) -> Script:
    fields = {":method": "GET", ":path": "/v1/models", ":authority": "a", "x-request-id": f"r-{NUMBER}"}
    head = message({"request_headers": {**fields, "": True}}, modes=modes)
    return Script(f"{modes}-no-body", (Step(head, 1), Step(_answer(rng), 1)), "", resets=False, echoed=0)


def _body(rng: random.Random, models: Sequence[str]) -> bytes:
    size = rng.choices([size for size, _ in BODY_BYTES], [share for _, share in BODY_BYTES])[0]
    # One in fifty names a model that exists nowhere, another each time.
    model = f"model-{NUMBER}" if rng.random() < 0.02 else rng.choice(models)
    common = f"system {rng.randrange(40)} " * (size // 20)
    own = f" question {NUMBER}" if rng.random() < 0.5 else ""
    text = (common[: size - len(own)] + own)[-size:]
    return msgspec.json.encode(
        {"model": model, "stream": rng.random() < 0.5, "messages": [{"role": "user", "content": text}]}
    )


def _request_fields(rng: random.Random, length: int) -> dict[str, str]:
    fields = {
        ":authority": "127.0.0.1:50557",
        ":path": "/v1/chat/completions",
        ":method": "POST",
        ":scheme": "http",
        "user-agent": "client/1.1",
        "content-length": str(length),
        "content-type": "application/json",
        "x-request-id": f"5d00050d-e21b-425a-a28d-{NUMBER}",
    }
    if rng.random() < 0.3:
        # Tenants: a few, and now and then one that nobody has seen.
        tenant = f"tenant-{NUMBER}" if rng.random() < 0.1 else f"tenant-{rng.randrange(20)}"
        fields["x-gateway-inference-fairness-id"] = tenant
    return fields


def _answer(rng: random.Random) -> bytes:
    status = "200" if rng.random() < 0.97 else "503"
    fields = {":status": status, "content-type": "application/json", "date": f"Sun, 29 Nov 2026 {NUMBER}"}
    attributes = {
        "response.code_details": "via_upstream",
        "upstream.address": SERVED,
        "upstream.request_attempt_count": 1,
    }
    return message({"response_headers": fields}, attributes=attributes, served=SERVED)


def _chunk(size: int, *, end: bool) -> bytes:
    return message({"response_body": {"body": b"x" * size, "end_of_stream": end}})


def message(
    what: Mapping[str, Mapping[str, Any]],
    *,
    attributes: Mapping[str, Any] | None = None,
    served: str = "",
    modes: tuple[int, int] | None = None,
) -> bytes:
    """A ProcessingRequest with its gRPC prefix. `what`: the part's name → its fields; "" → True: end of stream."""
    request = ext_proc.ProcessingRequest()
    for kind, content in what.items():
        part = getattr(request, kind)
        if kind.endswith("body"):
            part.body, part.end_of_stream = content.get("body", b""), content.get("end_of_stream", False)
            continue
        part.end_of_stream = bool(content.get("", False))
        for name, value in content.items():
            if name:
                field = part.headers.headers.add()
                field.key, field.raw_value = name, value.encode()
    if attributes:
        request.attributes[FILTER].update(attributes)
    request.metadata_context.SetInParent()
    if served:
        request.metadata_context.filter_metadata["envoy.lb"]["x-gateway-destination-endpoint-served"] = served
    if modes is not None:
        config = request.protocol_config
        config.request_body_mode, config.response_body_mode = modes
    data: bytes = request.SerializeToString(deterministic=True)
    return b"\0" + len(data).to_bytes(4, "big") + data
