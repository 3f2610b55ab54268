"""Received headers → RequestHead, and what is to become of the body. First step of a request after the exchange."""

from __future__ import annotations

import math
import uuid
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from poolpilot_picker.config.durations import milliseconds
from poolpilot_picker.requests import headers as names
from poolpilot_picker.requests.request import RequestKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

DEFAULT_PATH: Final = "/v1/completions"
"""Taken where no header tells the path (Endpoint Picker Protocol, path resolution)."""

KINDS: Final[Mapping[str, RequestKind]] = {
    "completions": RequestKind.COMPLETIONS,
    "embeddings": RequestKind.EMBEDDINGS,
    "responses": RequestKind.RESPONSES,
    "messages": RequestKind.MESSAGES,
}
"""Last segment of a path → API (`chat/completions` is told apart by the segment before). Whole segments only:
`/foo/xcompletions` is not completions."""


class BodyUse(StrEnum):
    """What the picker does with a request's body."""

    NONE = "none"
    """There is none: pick in the answer to the headers."""
    UNSEEN = "unseen"
    """Upgrade, CONNECT, gRPC: pick in the answer to the headers and ask for no body, else the exchange hangs."""
    INFERENCE = "inference"
    """A JSON inference call: `parse` needs it whole, or its beginning, and may refuse it."""
    OPAQUE = "opaque"
    """Anything else: `parse` takes the model from it where it can and never refuses it; routed by load."""


class VideoHint(msgspec.Struct, frozen=True):
    """What the client says of a video that only its address is sent of."""

    fps: float = 1.0
    seconds: float = 10.0
    width: int = 640
    height: int = 360


NO_HINT: Final = VideoHint()

MAX_SIDE: Final = 16384
"""Pixels; a larger resolution is taken for nonsense."""

_OTHER: Final = RequestKind.OTHER
_UNSEEN: Final = BodyUse.UNSEEN
_VIDEO: Final = frozenset((names.VIDEO_FPS, names.VIDEO_SECONDS, names.VIDEO_RESOLUTION))
_SELDOM: Final = frozenset(
    (
        "content-encoding",
        "prefer",
        "upgrade",
        names.MODEL_NAME,
        names.RECEIPT,
        names.TEST_SELECTION,
        names.QUEUE_TTL,
        *names.TENANT,
        *names.OBJECTIVE,
        *names.ROUTING_KEY,
        *names.MODEL_REWRITE,
        *names.SLO_TTFT_MS,
        *names.SLO_TPOT_MS,
        *_VIDEO,
        *names.NEVER_FROM_CLIENTS,
    )
)
"""Most requests carry none of these: one look instead of twenty."""

KNOWN: Final = 1_024
"""Heads remembered by path, method and content type: most requests differ in nothing else."""
KNOWN_CHARACTERS: Final = 256
"""Longer ones are not remembered."""
_known: Final[dict[tuple[str | bytes | None, ...], RequestHead]] = {}


class RequestHead(msgspec.Struct, kw_only=True, gc=False):
    """What the headers say. New header names win over their aliases; of a repeated header the last one counts."""

    request_id: str
    request_id_made: bool = False
    """True when the client sent none: the picker adds it to the forwarded headers."""
    idempotency_key: str = ""
    client_retries: int = 0
    """How often the client says that it has sent the request before."""
    path: str = DEFAULT_PATH
    """Without query and fragment."""
    method: str = "POST"
    kind: RequestKind = RequestKind.COMPLETIONS
    """By the path alone; `use` says whether the body is of that kind."""
    use: BodyUse = BodyUse.INFERENCE
    """What is to become of a body, if there is one (`body_use`)."""
    content_type: str = ""
    """Media type, lower case, without parameters."""
    content_encoding: str = ""
    content_length: int | None = None
    upgrade: bool = False
    """An HTTP upgrade or CONNECT."""
    grpc: bool = False
    tenant: str = ""
    objective: str = ""
    routing_key: str = ""
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    queue_ttl_ms: float | None = None
    """How long the request may wait in the queue."""
    model_rewrite: str = ""
    """Model to ask the engine for instead of the body's."""
    model_hint: str = ""
    """The model according to a body-based router in front; used only where the body does not tell."""
    only_if_cached: bool = False
    test_selection: tuple[str, ...] = ()
    receipt_wanted: bool = False
    video: VideoHint = NO_HINT
    ignored: tuple[str, ...] = ()
    """Names of headers whose value made no sense and was ignored: to be counted."""
    plain: bool = True
    """No header but the usual ones: none that are read here besides, none that a client must not send."""

    @property
    def is_json(self) -> bool:
        """Plain JSON by its headers. No content type at all counts as JSON."""
        kind = self.content_type
        return not self.content_encoding and (
            kind in ("application/json", "", "text/json")
            or (kind.startswith("application/") and kind.endswith("+json"))
        )


def new_request_id() -> str:
    """UUIDv4, as the protocol asks."""
    return str(uuid.uuid4())


def read_head(
    received: Iterable[tuple[str, str | bytes]], *, new_id: Callable[[], str] = new_request_id
) -> RequestHead:
    """RequestHead from (lower-case name, value) pairs. Never raises for what a client sent.

    `new_id` makes the request id where the client sent none.
    """
    fields = dict(received)
    get = fields.get
    key = (get(":path"), get(":method"), get("content-type"))
    known = _known.get(key) or _first_seen(key, fields)
    length = get("content-length")
    size = None if length is None else _whole(length if type(length) is str else _text(length))
    request_id = get(names.REQUEST_ID)
    if request_id:
        head = replace(known, request_id=_text(request_id), content_length=size)
    else:
        head = replace(known, request_id=new_id(), request_id_made=True, content_length=size)
    if retries := get(names.CLIENT_RETRIES):
        head.client_retries = _whole(_text(retries)) or 0
    if idempotency := get(names.IDEMPOTENCY_KEY):
        head.idempotency_key = _text(idempotency)
    if not _SELDOM.isdisjoint(fields):
        head.plain = False
        _read_seldom(head, {name: _text(value) for name, value in fields.items()})
        head.use = _use(head)
    return head


def _first_seen(key: tuple[str | bytes | None, ...], fields: Mapping[str, str | bytes]) -> RequestHead:
    """What path, method and content type say; remembered, where they are all it takes."""
    path = DEFAULT_PATH
    for name in (":path", "x-original-path", "x-forwarded-path"):
        if value := fields.get(name):
            path = _text(value)
            break
    path = path.partition("?")[0].partition("#")[0]
    method = _text(fields.get(":method") or "POST")
    content_type = _text(fields.get("content-type", "")).partition(";")[0].strip().lower()
    head = RequestHead(
        request_id="",
        path=path,
        method=method,
        kind=kind_of(path),
        content_type=content_type,
        upgrade=method == "CONNECT",
        grpc=content_type.startswith("application/grpc"),
    )
    head.use = _use(head)
    if key[0] and sum(map(len, filter(None, key))) <= KNOWN_CHARACTERS:
        if len(_known) >= KNOWN:
            _known.clear()
        _known[key] = head
    return head


def _use(head: RequestHead) -> BodyUse:
    if head.upgrade or head.grpc:
        return _UNSEEN
    if head.kind is _OTHER or head.method != "POST" or not head.is_json:
        return BodyUse.OPAQUE
    return BodyUse.INFERENCE


def _read_seldom(head: RequestHead, fields: Mapping[str, str]) -> None:
    get = fields.get
    ignored: list[str] = []
    head.content_encoding = _encoding(get("content-encoding", ""))
    head.upgrade = head.upgrade or _is_upgrade(get("connection", ""), get("upgrade", ""))
    head.tenant = _first(names.TENANT, fields)
    head.objective = _first(names.OBJECTIVE, fields)
    head.routing_key = _first(names.ROUTING_KEY, fields)
    head.model_rewrite = _first(names.MODEL_REWRITE, fields)
    head.model_hint = get(names.MODEL_NAME, "")
    head.slo_ttft_ms = _slo(names.SLO_TTFT_MS, fields, ignored)
    head.slo_tpot_ms = _slo(names.SLO_TPOT_MS, fields, ignored)
    if (ttl := get(names.QUEUE_TTL)) is not None:
        head.queue_ttl_ms = milliseconds(ttl)
        if head.queue_ttl_ms is None:
            ignored.append(names.QUEUE_TTL)
    head.only_if_cached = "if-available" in (part.strip().lower() for part in get("prefer", "").split(","))
    head.test_selection = tuple(part for raw in get(names.TEST_SELECTION, "").split(",") if (part := raw.strip()))
    head.receipt_wanted = get(names.RECEIPT, "").strip().lower() not in ("", "0", "false", "no")
    if not _VIDEO.isdisjoint(fields):
        head.video = _video(fields, ignored)
    head.ignored = tuple(ignored)


def kind_of(path: str) -> RequestKind:
    """The API that a path's last segments name; OTHER for every other path."""
    trimmed = path.strip("/")
    before, _, last = trimmed.rpartition("/")
    if last == "completions" and (before == "chat" or before.endswith("/chat")):
        return RequestKind.CHAT
    return KINDS.get(last, RequestKind.OTHER)


def body_use(head: RequestHead, *, end_of_stream: bool) -> BodyUse:
    """What to do with the body of a request with this head; `end_of_stream` as of the headers message.

    All gRPC is UNSEEN: headers do not tell a unary call from a bidirectional one, which would hang.
    """
    if end_of_stream and head.use is not _UNSEEN:
        return BodyUse.NONE
    return head.use


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _first(candidates: tuple[str, ...], fields: Mapping[str, str]) -> str:
    for name in candidates:
        if value := fields.get(name):
            return value
    return ""


def _is_upgrade(connection: str, upgrade: str) -> bool:
    # `upgrade: h2c` comes with ordinary POSTs of some HTTP libraries; Envoy treats those as plain requests.
    return bool(upgrade) and upgrade.strip().lower() != "h2c" and "upgrade" in connection.lower()


def _encoding(value: str) -> str:
    encoding = value.strip().lower()
    return "" if encoding == "identity" else encoding


def _whole(value: str) -> int | None:
    return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else None


def _positive(value: str, name: str, ignored: list[str]) -> float | None:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if 0.0 < number < math.inf:
        return number
    ignored.append(name)
    return None


def _slo(candidates: tuple[str, ...], fields: Mapping[str, str], ignored: list[str]) -> float | None:
    for name in candidates:
        if name in fields:
            return _positive(fields[name], name, ignored)
    return None


def _video(fields: Mapping[str, str], ignored: list[str]) -> VideoHint:
    fps = seconds = width = height = None
    if names.VIDEO_FPS in fields:
        fps = _positive(fields[names.VIDEO_FPS], names.VIDEO_FPS, ignored)
    if names.VIDEO_SECONDS in fields:
        seconds = _positive(fields[names.VIDEO_SECONDS], names.VIDEO_SECONDS, ignored)
    if names.VIDEO_RESOLUTION in fields:
        sides = [_whole(side.strip()) for side in fields[names.VIDEO_RESOLUTION].lower().split("x")]
        if len(sides) == 2 and all(side and side <= MAX_SIDE for side in sides):
            width, height = sides
        else:
            ignored.append(names.VIDEO_RESOLUTION)
    return VideoHint(
        fps=fps or NO_HINT.fps,
        seconds=seconds or NO_HINT.seconds,
        width=width or NO_HINT.width,
        height=height or NO_HINT.height,
    )
