"""What happens around the bytes: time-outs, slow and silent peers, floods, TLS, and peers that are no gRPC clients."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import time
from pathlib import Path

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from h2.events import (
    DataReceived,
    PingReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
)

from extproc_client import chat
from poolpilot_picker.errors import StartError
from poolpilot_picker.extproc.certificates import Certificates, TlsFiles
from poolpilot_picker.extproc.wire import frames, listening
from poolpilot_picker.extproc.wire.errors import Code
from poolpilot_picker.extproc.wire.limits import Limits
from wire_server import WAIT_S, Raw, WireServer, prefixed, request_head

TLS = Path(__file__).parents[2] / "data/tls"
QUICK = Limits(
    tick_ms=20.0,
    handshake_ms=300.0,
    settings_ack_ms=300.0,
    keepalive_ms=300.0,
    keepalive_timeout_ms=200.0,
    idle_ms=60_000.0,
    goaway_ms=100.0,
)


def first_messages(*, duplex: bool = False) -> bytes:
    """What a data plane sends to have a request placed."""
    head = ext_proc.ProcessingRequest()
    for name, value in ((":method", "POST"), (":path", "/v1/chat/completions"), ("content-type", "application/json")):
        field = head.request_headers.headers.headers.add()
        field.key, field.raw_value = name, value.encode()
    head.protocol_config.request_body_mode = 4 if duplex else 2
    head.protocol_config.response_body_mode = 4 if duplex else 0
    body = ext_proc.ProcessingRequest()
    body.request_body.body = chat()
    body.request_body.end_of_stream = True
    return prefixed(head.SerializeToString()) + prefixed(body.SerializeToString())


async def placed(server: WireServer, **how: bool) -> Raw:
    """A connection with one stream on which a request was placed."""
    client = (await server.client()).greet()
    await client.until(RemoteSettingsChanged)
    client.h2.send_headers(1, request_head())
    client.h2.send_data(1, first_messages(**how))
    client.flush()
    await client.until(DataReceived)
    await server.until(lambda: server.booked() == 1)
    return client


# ── peers that say nothing ───────────────────────────────────────────────────


@pytest.mark.parametrize("said", [b"", frames.PREFACE, frames.PREFACE + frames.settings([])])
async def test_a_handshake_that_does_not_end(said: bytes) -> None:
    async with WireServer(QUICK) as server:
        client = await server.client()
        client.writer.write(said)
        assert frames.goaway(0, Code.SETTINGS_TIMEOUT)[9:17] in await client.rest()


async def test_a_data_plane_that_vanished_holds_no_booking() -> None:
    async with WireServer(QUICK) as server:
        await placed(server)
        before = time.monotonic()
        await server.until(lambda: server.booked() == 0)
        assert time.monotonic() - before > 0.2, "it was given time"
        assert server.transport.ended == {"Canceled": 1}


async def test_a_data_plane_that_answers_keeps_its_booking() -> None:
    async with WireServer(QUICK) as server:
        client = await placed(server)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.5):
                while True:
                    await client.read()
        assert server.booked() == 1
        client.close()
        await server.until(lambda: server.booked() == 0)


async def test_a_stall_of_ours_is_not_blamed_on_the_data_plane() -> None:
    """Its answer to a PING has come and waits to be read, but the event loop sees to its timers first."""
    clock = [0.0]
    slow = Limits(tick_ms=600_000.0, keepalive_ms=1_000_000.0, keepalive_timeout_ms=1_000_000.0)
    async with WireServer(slow, now=lambda: clock[0]) as server:
        client = await placed(server)
        for step in (600_000.0, 600_000.0):
            clock[0] += step
            server.transport._tick()
        await client.until(PingReceived)
        clock[0] += 5_000_000.0
        server.transport._tick()
        assert server.booked() == 1, "late by far, so nobody is judged"
        one = next(iter(server.transport._sockets))
        await server.until(lambda: one.connection.heard == clock[0])
        clock[0] += 600_000.0
        server.transport._tick()
        assert server.booked() == 1


async def test_an_idle_connection_is_closed() -> None:
    async with WireServer(Limits(tick_ms=20.0, idle_ms=200.0, goaway_ms=50.0)) as server:
        client = (await server.client()).greet()
        await client.until(RemoteSettingsChanged)
        assert frames.goaway(frames.MAX_STREAM_ID, Code.NO_ERROR) in await client.rest()


# ── peers that do not read ───────────────────────────────────────────────────


def echoing() -> bytes:
    """Has the picker echo what follows."""
    head = ext_proc.ProcessingRequest()
    for name, value in ((":method", "POST"), (":path", "/a/b"), ("content-type", "application/grpc")):
        field = head.request_headers.headers.headers.add()
        field.key, field.raw_value = name, value.encode()
    return prefixed(head.SerializeToString())


FILLER = b"\xee"


def chunk(size: int) -> bytes:
    """A body message."""
    message = ext_proc.ProcessingRequest()
    message.request_body.body = FILLER * size
    return prefixed(message.SerializeToString())


async def ready_to_echo(server: WireServer, window: int | None = None) -> Raw:
    """A connection whose first stream is echoed; `window`: that the client gives, as much as possible unless said."""
    client = (await server.client()).greet()
    if window is None:
        client.h2.update_settings({4: 2**31 - 1})
        client.h2.increment_flow_control_window(2**31 - 1 - 65_535)
    client.flush()
    await client.until(RemoteSettingsChanged)
    client.h2.send_headers(1, request_head())
    client.h2.send_data(1, echoing())
    client.flush()
    await server.until(lambda: server.transport.streams == 1)
    return client


async def test_a_peer_that_gives_no_window() -> None:
    """Its replies wait, and it gets no more window itself."""
    async with WireServer(Limits(stream_window=200_000, max_stream_backlog=100_000)) as server:
        client = await ready_to_echo(server, 65_535)
        piece, sent = chunk(16_000), 0
        while room := client.h2.local_flow_control_window(1):
            client.h2.send_data(1, piece[:room])
            sent += min(room, len(piece))
            client.flush()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.read(), 0.05)
        assert sent < 1_000_000
        assert 100_000 < server.held < 500_000


async def test_a_peer_that_does_not_read_its_socket() -> None:
    """Nothing is read from it either, and after a while it is given up; meanwhile others are served."""
    async with WireServer(QUICK) as server:
        client = await ready_to_echo(server)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        one = next(iter(server.transport._sockets))
        piece = frames.frame(frames.DATA, 0, 1, chunk(16_000))
        written = 0
        while one._stalled_since is None:
            client.writer.write(piece)
            written += len(piece)
            assert written < 200 * 2**20
            await asyncio.sleep(0)
        assert not one._reading
        other = await placed(server)
        other.keep_answering()
        await server.until(lambda: server.transport.streams == 1)
        assert server.transport.ended == {"Canceled": 1}
        assert server.booked() == 1


async def test_a_peer_that_pauses_and_goes_on() -> None:
    """Every byte arrives."""
    async with WireServer() as server:
        client = await ready_to_echo(server)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        one = next(iter(server.transport._sockets))
        piece, number = frames.frame(frames.DATA, 0, 1, chunk(16_000)), 0
        while one._stalled_since is None:
            client.writer.write(piece)
            number += 1
            await asyncio.sleep(0)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        got = 0
        while got < number * 16_000:
            got += sum(event.data.count(FILLER) for event in await client.read() if isinstance(event, DataReceived))
        assert got == number * 16_000
        await server.until(lambda: one._stalled_since is None and one._reading)


# ── floods ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "flooding",
    [
        frames.ping(b"12345678"),
        frames.settings([(4, 70_000)]),
        frames.frame(frames.PRIORITY, 0, 1, b"12345"),
        frames.frame(0xFA, 0, 0),
    ],
)
async def test_floods_end(flooding: bytes) -> None:
    async with WireServer() as server:
        client = (await server.client()).greet()
        client.writer.write(flooding * 10_000)
        assert frames.goaway(0, Code.ENHANCE_YOUR_CALM)[9:17] in await client.rest()


async def test_rapid_resets_end() -> None:
    async with WireServer(Limits(early_resets=100.0, early_resets_per_s=10.0)) as server:
        client = (await server.client()).greet()
        client.flush()
        for one in range(1, 601, 2):
            client.h2.send_headers(one, request_head())
            client.h2.reset_stream(one)
        client.flush()
        rest = await client.rest()
        assert int(Code.ENHANCE_YOUR_CALM).to_bytes(4, "big") in rest
        assert server.transport.ended == {"Canceled": 101}


async def test_a_flood_lets_others_have_their_turn() -> None:
    """A thousand streams at once are no flood; and whoever else waits is served between them."""
    async with WireServer(Limits(frames_at_once=50)) as server:
        busy = (await server.client()).greet()
        await busy.until(RemoteSettingsChanged)
        busy.h2.increment_flow_control_window(2**30)
        for one in range(1, 2_001, 2):
            busy.h2.send_headers(one, request_head())
            busy.h2.send_data(one, first_messages())
        busy.flush()
        other = (await server.client()).greet()
        await other.until(RemoteSettingsChanged)
        other.h2.send_headers(1, request_head("/grpc.health.v1.Health/Check"))
        other.h2.send_data(1, prefixed(b""), end_stream=True)
        other.flush()
        await other.until(TrailersReceived)
        await server.until(lambda: server.booked() == 1_000)
        busy.close()
        await server.until(lambda: server.transport.streams == 0)


# ── limits ───────────────────────────────────────────────────────────────────


async def test_unfinished_messages_of_many_streams_are_bounded() -> None:
    async with WireServer(Limits(max_held_bytes=100_000)) as server:
        client = (await server.client()).greet()
        await client.until(RemoteSettingsChanged)
        client.h2.increment_flow_control_window(2**30)
        start = prefixed(b"x" * 1_000_000)[:16_000]
        for one in range(1, 41, 2):
            client.h2.send_headers(one, request_head())
            client.h2.send_data(one, start)
        client.flush()
        while sum(isinstance(event, ResponseReceived) for event in client.events) < 14:
            await client.read()
        for event in client.events:
            if isinstance(event, ResponseReceived):
                assert dict(event.headers)["grpc-status"] == "8"
        assert 80_000 < server.held <= 100_000
        client.close()
        await server.until(lambda: server.held == 0)


# ── other kinds of peers ─────────────────────────────────────────────────────


async def test_http_1(caplog: pytest.LogCaptureFixture) -> None:
    async with WireServer() as server:
        for _ in range(3):
            client = await server.client()
            client.writer.write(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")
            await client.rest()
    said = [record.message for record in caplog.records]
    assert said == ["a connection was ended: the connection does not begin as HTTP/2 does"], "once a minute"


@pytest.mark.parametrize(
    ("method", "content_type", "status"),
    [("GET", "", "405"), ("HEAD", "", "405"), ("POST", "application/json", "415"), ("POST", "", "415")],
)
async def test_http_2_without_grpc(method: str, content_type: str, status: str) -> None:
    async with WireServer() as server:
        client = (await server.client()).greet()
        fields = [(":method", method), (":scheme", "http"), (":path", "/"), (":authority", "a")]
        client.h2.send_headers(1, [*fields, *([("content-type", content_type)] if content_type else [])])
        client.h2.send_data(1, b"{}", end_stream=True)
        client.flush()
        head = dict((await client.until(ResponseReceived)).headers)
        assert head[":status"] == status
        assert head.get("allow") == ("POST" if status == "405" else None)
        if method != "HEAD":
            assert b"gRPC" in (await client.until(DataReceived)).data


async def call(client: Raw, path: str, *fields: tuple[str, str], data: bytes = b"") -> dict[str, str]:
    """The status of a gRPC call with one piece of data: header fields of its end."""
    client.h2.send_headers(1, [*request_head(path), *fields])
    client.h2.send_data(1, data, end_stream=True)
    client.flush()
    head = dict((await client.until(ResponseReceived)).headers)
    return head if "grpc-status" in head else dict((await client.until(TrailersReceived)).headers)


@pytest.mark.parametrize(
    ("path", "fields", "data", "status", "message"),
    [
        ("/a.B/C", [], b"", "12", "unknown method /a.B/C"),
        ("/grpc.health.v1.Health/Check", [("grpc-encoding", "snappy")], prefixed(b""), "12", "grpc-encoding"),
        ("/grpc.health.v1.Health/Check", [], prefixed(b"", 1), "13", "there is no grpc-encoding"),
        ("/grpc.health.v1.Health/Check", [], b"", "13", "there is no request message"),
        ("/grpc.health.v1.Health/Check", [], prefixed(b"") * 2, "13", "more than one"),
        ("/grpc.health.v1.Health/Check", [], prefixed(b"\xff"), "13", "no HealthCheckRequest"),
        ("/grpc.health.v1.Health/Check", [], prefixed(b"xx")[:-1], "13", "cut off"),
        ("/grpc.health.v1.Health/Check", [], prefixed(b"\x0a\x01x"), "5", "unknown"),
        ("/grpc.health.v1.Health/Watch", [], b"", "13", "there is no request message"),
        ("/grpc.health.v1.Health/Check", [], prefixed(b""), "0", ""),
        ("/envoy.service.ext_proc.v3.ExternalProcessor/Process", [], b"", "0", ""),
        ("/envoy.service.ext_proc.v3.ExternalProcessor/Process", [], b"\0\0\0\0\x05abc", "13", "cut off"),
    ],
)
async def test_statuses(path: str, fields: list[tuple[str, str]], data: bytes, status: str, message: str) -> None:
    async with WireServer() as server:
        client = (await server.client()).greet()
        end = await call(client, path, *fields, data=data)
        assert end["grpc-status"] == status
        assert message in end.get("grpc-message", "")
        assert ("grpc-accept-encoding" in end) == (status == "12")


# ── TLS ──────────────────────────────────────────────────────────────────────


def tls_files() -> TlsFiles:
    return TlsFiles(certificate=(TLS / "server.crt").read_bytes(), key=(TLS / "server.key").read_bytes())


def client_context(alpn: list[str], version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(TLS / "ca.crt"))
    context.check_hostname = False
    if alpn:
        context.set_alpn_protocols(alpn)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_versions(version: ssl.TLSVersion) -> None:
    async with WireServer(tls=tls_files()) as server:
        client = (await server.client(client_context(["h2"], version))).greet()
        end = await call(client, "/grpc.health.v1.Health/Check", data=prefixed(b""))
        assert end["grpc-status"] == "0"


@pytest.mark.parametrize("alpn", [[], ["http/1.1"]])
async def test_tls_without_http_2(alpn: list[str], caplog: pytest.LogCaptureFixture) -> None:
    async with WireServer(tls=tls_files()) as server:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            client = await server.client(client_context(alpn))
            assert await client.rest() == b""
            client.close()
        await server.until(lambda: not server.transport._sockets)
    said = [record.message for record in caplog.records if record.name.startswith("poolpilot")]
    assert said == ["a connection was ended: a TLS client does not offer HTTP/2 (ALPN h2)"]


async def test_plaintext_on_a_tls_port_and_an_unfinished_handshake(caplog: pytest.LogCaptureFixture) -> None:
    async with WireServer(QUICK, tls_files()) as server:
        plain = (await server.client()).greet()
        await plain.rest()
        silent = await server.client()
        await silent.rest()
    assert not [record for record in caplog.records if record.exc_info], "nobody's fault of ours"


async def shown(server: WireServer) -> bytes:
    """The certificate that a new connection is shown, DER."""
    context = client_context(["h2"])
    context.verify_mode = ssl.CERT_NONE
    raw = await server.client(context)
    found = raw.writer.get_extra_info("ssl_object").getpeercert(True)
    assert isinstance(found, bytes)
    return found


def of_client() -> TlsFiles:
    """Another pair."""
    return TlsFiles(certificate=(TLS / "client.crt").read_bytes(), key=(TLS / "client.key").read_bytes())


def der(files: TlsFiles) -> bytes:
    return ssl.PEM_cert_to_DER_cert(files.certificate[files.certificate.index(b"-----BEGIN") :].decode())


async def test_all_ports_get_new_certificates_and_connections_stay() -> None:
    both = Certificates(tls_files())
    async with WireServer(tls=both) as one, WireServer(tls=both) as two:
        before = (await one.client(client_context(["h2"]))).greet()
        unfinished = await one.client()
        for files in (of_client(), tls_files(), of_client()):
            both.replace(files)
        for server in (one, two):
            port = server.port
            async with asyncio.timeout(WAIT_S):
                while await shown(server) != der(of_client()):
                    await asyncio.sleep(0.005)
            assert server.port == port
        end = await call(before, "/grpc.health.v1.Health/Check", data=prefixed(b""))
        assert end["grpc-status"] == "0"
        unfinished.close()
        await two.transport.drain(0.0)
        both.replace(tls_files())
        with pytest.raises(ConnectionError):
            await two.client()
        async with asyncio.timeout(WAIT_S):
            while await shown(one) != der(tls_files()):
                await asyncio.sleep(0.005)
    assert not both._followers


async def test_certificates_that_cannot_be_taken_into_use(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: TlsFiles) -> ssl.SSLContext:
        raise OSError(24, "Too many open files")

    both = Certificates(tls_files())
    async with WireServer(tls=both) as server:
        with monkeypatch.context() as patched:
            patched.setattr(listening, "tls_context", fails)
            both.replace(of_client())
            await server.until(lambda: "could not be taken into use" in caplog.text)
        assert await shown(server) == der(tls_files()), "the port keeps what it has"
        both.replace(of_client())
        async with asyncio.timeout(WAIT_S):
            while await shown(server) != der(of_client()):
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (TlsFiles(certificate=b"nothing", key=b"nothing"), "cannot be used"),
        (TlsFiles(certificate=(TLS / "server.crt").read_bytes(), key=(TLS / "client.key").read_bytes()), "cannot be"),
        (
            TlsFiles(
                certificate=(TLS / "server.crt").read_bytes(),
                key=(TLS / "server.key").read_bytes(),
                client_ca=b"nothing",
            ),
            "cannot be used",
        ),
    ],
)
async def test_bad_tls_files(files: TlsFiles, why: str) -> None:
    with pytest.raises(StartError, match=why):
        await WireServer(tls=files).transport.start()


# ── the end ──────────────────────────────────────────────────────────────────


async def test_connections_that_come_while_draining_are_told_so() -> None:
    async with WireServer(QUICK) as server:
        client = await placed(server, duplex=True)
        draining = asyncio.ensure_future(server.transport.drain(WAIT_S))
        await client.until_said(frames.goaway(frames.MAX_STREAM_ID, Code.NO_ERROR))
        with pytest.raises(ConnectionError):
            await server.client()
        assert server.booked() == 1
        server.transport.hurry()
        await asyncio.wait_for(draining, WAIT_S)


@pytest.mark.parametrize("turns", range(4))
async def test_a_connection_that_comes_in_the_moment_the_port_closes_does_not_hang(turns: int) -> None:
    """asyncio accepts in one turn and takes up in the next."""
    loop, faults = asyncio.get_running_loop(), list[dict[str, object]]()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    async with WireServer() as server:
        # By the kernel alone, so that it is known in which turn the server sees it.
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        draining = asyncio.ensure_future(server.transport.drain(0.0))
        with contextlib.closing(raw):
            received = b""
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(WAIT_S):
                    while data := await loop.sock_recv(raw, 65_536):
                        received += data
        # Refused by the kernel, or told so by us.
        goaway = frames.goaway(frames.MAX_STREAM_ID, Code.NO_ERROR)
        assert goaway in received if turns else goaway in received or not received
        await asyncio.wait_for(draining, WAIT_S)
    gc.collect()
    assert faults == []


async def test_a_peer_that_ignores_the_goaway_does_not_delay_the_end() -> None:
    async with WireServer() as server:
        client = (await server.client()).greet()
        await client.until(RemoteSettingsChanged)
        client.h2.send_headers(1, request_head("/grpc.health.v1.Health/Watch"))
        client.h2.send_data(1, prefixed(b""), end_stream=True)
        client.flush()
        await client.until(DataReceived)
        before = time.monotonic()
        await asyncio.wait_for(server.transport.drain(0.2), WAIT_S)
        assert time.monotonic() - before < 5.0
        rest = await client.rest()
        assert b"shutting down" in rest or not any(isinstance(event, StreamReset) for event in client.events)
