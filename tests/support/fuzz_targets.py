"""What is fuzzed: for each target a function of bytes that raises where a promise is broken, and inputs to begin with.

The corpus in tests/data/fuzz is played by an ordinary test; `fuzz.py` looks for more.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf.message import DecodeError
from hpack import Decoder as OracleDecoder
from hpack.exceptions import HPACKError, OversizedHeaderListError
from prometheus_client import CollectorRegistry

from exchange_desk import ADDRESSES, Chosen, spec_of
from poolpilot_picker import compiled
from poolpilot_picker.errors import RequestRefused
from poolpilot_picker.extproc import codec
from poolpilot_picker.extproc.exchange import Exchange, ExchangeSettings
from poolpilot_picker.extproc.replies import NO_MUTATION, BodyReply, HeadersReply, StreamedReply
from poolpilot_picker.extproc.wire.calls import Service
from poolpilot_picker.extproc.wire.connection import Connection
from poolpilot_picker.extproc.wire.echo import Echo
from poolpilot_picker.extproc.wire.errors import CallFault, ConnectionFault
from poolpilot_picker.extproc.wire.fast_replies import ReplyWriter
from poolpilot_picker.extproc.wire.fast_requests import RequestReader
from poolpilot_picker.extproc.wire.grpc_messages import MessageReader
from poolpilot_picker.extproc.wire.hpack import Decoder, ListTooLarge
from poolpilot_picker.extproc.wire.limits import Held, Limits
from poolpilot_picker.flow.pool import Pool
from poolpilot_picker.instruments.metrics import PickerMetrics
from poolpilot_picker.requests import read_head, rewrite_model
from poolpilot_picker.requests.parsing import parse
from poolpilot_picker.requests.usage import UsageReader
from poolpilot_picker.sources.exposition import Wanted, needles
from wire_traffic import BUFFERED_PARTIAL, DUPLEX, HELLO, NONE, DataPlane

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA = Path(__file__).parents[1] / "data"
CORPUS = DATA / "fuzz"
BREAK = b"\xff\xfe\xff"
"""Between the parts of an input that has several."""
LIMIT = 4_096


def _pieces(data: bytes, pattern: int) -> Iterator[bytes]:
    """Cuts data as reads of a socket might: all at once, or by lengths that `pattern` chooses."""
    if not pattern:
        yield data
        return
    rng = random.Random(pattern)
    at = 0
    while at < len(data):
        size = rng.choice((1, 3, 9, 40, 700, 16_384))
        yield data[at : at + size]
        at += size


# ── a whole connection ───────────────────────────────────────────────────────


class StrictService(Service):
    """A fault of ours is an error here, not a line in the log."""

    def log_failure(self) -> None:
        # Bytes that are no message end their call, and nothing else.
        if not isinstance(sys.exception(), DecodeError):
            raise


class Picker:
    """A pool behind connections. Made once: what one input leaves behind would fail the next."""

    def __init__(self) -> None:
        self.pool = Pool("pool", Chosen(), random.Random(1))
        self.pool.apply_endpoints([spec_of(address) for address in ADDRESSES])
        self.metrics = PickerMetrics(CollectorRegistry())
        self.limits = Limits(max_held_bytes=2**20, max_message_bytes=2**17)
        self.held = Held(self.limits.max_held_bytes)
        self.now = 0.0
        self.service = StrictService(self._exchange, lambda: self.now, self.limits, self.held)

    def _exchange(self) -> Exchange:
        return Exchange(self.pool, self.metrics, ExchangeSettings(), new_id=lambda: "r")


PICKER: list[Picker] = []


def connection(data: bytes) -> None:
    """A client's bytes after its greeting: every call closes, nothing stays booked or held, output is bounded."""
    if not PICKER:
        PICKER.append(Picker())
    picker = PICKER[0]
    one = Connection(picker.limits, picker.held, picker.service.accept, picker.now, picker.service.messages)
    written = 0
    pattern, data = data[:1], data[1:]
    for piece in (HELLO, *_pieces(data, pattern[0] if pattern else 0)):
        picker.now += 1.0
        one.receive(piece, picker.now)
        written += len(one.take())
        while one.more:
            one.receive(b"", picker.now)
            written += len(one.take())
        assert picker.held.bytes <= picker.limits.max_held_bytes
    one.tick(picker.now + 1.0)
    one.go_away(picker.now + 2.0)
    for call in list(picker.service.calls):
        call.give_up()
    written += len(one.take())
    one.lost()
    assert written <= 300 * len(data) + 10_000
    assert not picker.service.calls and not one.streams and not picker.held.bytes
    assert not picker.pool.table.requests.sum() and not len(picker.pool.ledger)


# ── header blocks ────────────────────────────────────────────────────────────


def header_blocks(data: bytes) -> None:
    """Blocks of one connection: what both codecs accept they understand alike, and we accept nothing more."""
    allowed = 4_096 if data[:1] and data[0] & 1 else 0
    ours: Decoder[list[tuple[bytes, bytes]]] = Decoder(list, LIMIT)
    ours.allow(allowed)
    oracle = OracleDecoder(max_header_list_size=LIMIT)
    oracle.max_allowed_table_size = allowed
    if not allowed:
        oracle.header_table_size = 0
    for block in data[1:].split(BREAK):
        expected = refused = None
        try:
            expected = [(bytes(name), bytes(value)) for name, value in oracle.decode(block, raw=True)]
        except HPACKError as error:
            refused = error
        try:
            got = ours.decode(block)
        except ListTooLarge:
            # The oracle stops in the middle, and is of no use afterwards.
            assert isinstance(refused, HPACKError), (block, expected)
            return
        except ConnectionFault:
            return
        assert refused is None or isinstance(refused, OversizedHeaderListError), (block, got, refused)
        if refused is not None:
            raise AssertionError((block, got, refused))
        assert got == expected, block


# ── gRPC messages ────────────────────────────────────────────────────────────


def grpc_messages(data: bytes) -> None:
    """Messages are the same however their bytes are cut, and nothing beyond the limits is kept."""
    encoding = (b"", b"gzip", b"deflate", b"identity")[data[0] & 3] if data else b""
    pattern, data = data[:1], data[1:]
    results: list[tuple[list[bytes], bool]] = []
    for cut in (0, 1 + (pattern[0] if pattern else 0)):
        held = Held(10 * LIMIT)
        reader = MessageReader(LIMIT, held, encoding)
        got: list[bytes] = []
        failed = False
        try:
            for piece in _pieces(data, cut):
                if piece:
                    got += reader.feed(piece)
                    assert reader.have == held.bytes
        except CallFault:
            failed = True
        reader.forget()
        assert not held.bytes
        assert all(len(message) <= LIMIT for message in got)
        results.append((got, failed))
    (whole, whole_failed), (cut_up, cut_failed) = results
    # At once, the messages in front of a bad one are not handed out.
    assert whole_failed == cut_failed and (whole == cut_up or whole_failed), results


# ── messages of ext_proc ─────────────────────────────────────────────────────


class Ear:
    """Stands for an exchange: remembers what it is told, in one form."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., list[Any]]:
        def note(*what: Any, **more: Any) -> list[Any]:
            if name.endswith("headers"):
                fields = [(key, value.encode() if isinstance(value, str) else value) for key, value in what[0]]
                what = (fields, *what[1:])
            self.heard.append((name, what, {key: _comparable(value) for key, value in more.items()}))
            return []

        return note


def _comparable(value: Any) -> Any:
    """Plain data in which NaN equals itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if hasattr(value, "items"):
        return {key: _comparable(item) for key, item in value.items()}
    return [_comparable(item) for item in value] if isinstance(value, list) else value


READER = RequestReader()
WRITER = ReplyWriter()
ECHO = Echo(READER, WRITER)
REPLIES = (StreamedReply, HeadersReply, BodyReply, NO_MUTATION)


def requests(data: bytes) -> None:
    """A message read by hand is the message that the generated class reads; compiled, it is read alike."""
    if compiled.in_force is not None:
        read = compiled.in_force.messages(READER, WRITER, REPLIES, b"", LIMIT).read
        assert repr(read(data, 0, len(data))) == repr(RequestReader().read(data))
    by_class, by_hand = Ear(), Ear()
    try:
        parsed = ext_proc.ProcessingRequest.FromString(data)
    except DecodeError:
        parsed = None
    if parsed is None:
        with contextlib.suppress(DecodeError):
            READER.dispatch(by_hand, data, 5.0)  # type: ignore[arg-type]
            raise AssertionError(f"read by hand, but no message: {data!r}")
        assert not by_hand.heard
        return
    expected = None if parsed.observability_mode else codec.dispatch(by_class, parsed, 5.0)  # type: ignore[arg-type]
    for _ in range(2):  # the second time from memory
        by_hand.heard.clear()
        got = READER.dispatch(by_hand, data, 5.0)  # type: ignore[arg-type]
        assert (got is None) == (expected is None)
        assert by_hand.heard == by_class.heard, data
    echoed = ECHO.chunk(data, 0)
    if echoed is not None:
        assert expected is not None
        chunk = StreamedReply(request=False, chunk=parsed.response_body.body, end_of_stream=False)
        assert b"".join(echoed) == b"".join(WRITER.encode(chunk)), data
        assert [what for what, *_ in by_class.heard] in (["response_body"], ["set_modes", "response_body"])
        assert not parsed.response_body.end_of_stream, data


# ── what model servers say ───────────────────────────────────────────────────

NAMES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:cache_config_info", "a", "a_bucket", "b:c")


def exposition(data: bytes) -> None:
    """Metrics pages of one endpoint, one after the other: one that comes again says the same, by the short way too."""
    kept = Wanted(needles(NAMES))
    for page in data.split(BREAK):
        first = kept.find(page)
        if not first.malformed:
            said = _series(first.series)
            assert _series(kept.find(page).series) == said, page
        for series in kept.find(page).series.values():
            for one in series:
                with contextlib.suppress(ValueError):
                    dict(one.labels)


def _series(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {
        name: [(one.block, _comparable(one.value), _comparable(one.timestamp_ms)) for one in series]
        for name, series in found.items()
        if series
    }


def usage(data: bytes) -> None:
    """An answer is understood alike however it is cut, up to what is held of one line."""
    streamed = bool(data[:1] and data[0] & 1)
    found = []
    for cut in (0, 1 + (data[0] if data else 0)):
        reader = UsageReader(streamed=streamed)
        for piece in _pieces(data[1:], cut):
            reader.feed(piece)
        reader.finish()
        found.append(reader.usage)
    assert found[0] == found[1], found


# ── request bodies ───────────────────────────────────────────────────────────

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/audio/transcriptions")


def bodies(data: bytes) -> None:
    """A body is understood or refused with words; its beginning alone is never refused; a new model changes no more."""
    first, body = data[0] if data else 0, data[1:]
    head = read_head([(":path", PATHS[first % len(PATHS)]), (":method", "POST"), ("content-type", "application/json")])
    parse(head, body, complete=False)
    request = None
    with contextlib.suppress(RequestRefused):
        request = parse(head, body)
    if request is None:
        return
    if request.is_inference and request.model:
        changed = rewrite_model(body, "another")
        try:
            before = json.loads(body.decode("utf-8-sig"))
        except ValueError:
            return  # in parts that are not read here; the engine will say what is wrong
        after = json.loads(changed.decode("utf-8-sig"))
        assert after["model"] == "another"
        assert before.keys() == after.keys()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "connection": connection,
    "header-blocks": header_blocks,
    "grpc-messages": grpc_messages,
    "requests": requests,
    "exposition": exposition,
    "usage": usage,
    "bodies": bodies,
}


def corpus(target: str) -> list[bytes]:
    """Inputs that were worth keeping: one a line, in hexadecimal digits."""
    file = CORPUS / f"{target}.txt"
    return [bytes.fromhex(line) for line in file.read_text().splitlines()] if file.exists() else []


def beginnings(target: str) -> list[bytes]:
    """Inputs to begin with where there is no corpus."""
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}]}'
    exchanges = [
        b"".join(DataPlane(request=request, response=response).exchange(1, chunks=2, body=body, reset=reset))
        for request, response in ((DUPLEX, DUPLEX), (BUFFERED_PARTIAL, NONE))
        for reset in ("head", "body", "answer", "end")
    ]
    page = (DATA / "engines/vllm-0.32").glob("metrics-*.txt")
    lines = [one.read_bytes().splitlines(keepends=True) for one in sorted(page)[:2]]
    pages = [
        b"".join(line for line in all_lines if b"num_requests" in line or b"cache_config" in line)
        for all_lines in lines
    ]
    chat = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "max_tokens": 5}
    begin: dict[str, list[bytes]] = {
        "connection": [bytes((at,)) + one for at, one in enumerate(exchanges)],
        "header-blocks": [b"\1" + bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff") + BREAK + b"\xbe\x84"],
        "grpc-messages": [b"\0\0\0\0\0\3abc\0\0\0\0\0"],
        "requests": [message for one in exchanges for message in _messages(one)],
        "exposition": [BREAK.join(pages), b'# TYPE a counter\na 1\na{b="c"} 2 3\n', *pages],
        "usage": [
            b'\1data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"usage":{"completion_tokens":2}}\n\n',
            b'\0{"id":"a","usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}',
        ],
        "bodies": [
            b"\0" + msgspec.json.encode(chat),
            b'\1{"model":"m","prompt":["a",[1,2]],"n":2}',
            b'\2{"model":"m","input":"a"}',
            b'\3{"model":"m","input":[{"role":"user","content":"a"}],"instructions":"b"}',
        ],
    }
    return begin[target]


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 9 <= len(data):
        size = int.from_bytes(data[at : at + 3], "big")
        if data[at + 3] == 0 and size > 5:
            yield data[at + 14 : at + 9 + size]
        at += 9 + size
