"""The GET client against real sockets: kept connections, time-outs, closed and broken connections, TLS."""

import asyncio
import shutil
import socket
import ssl
import subprocess

import pytest

from engine_pages import answer, serving
from poolpilot_picker.sources.errors import ErrorKind, FetchError
from poolpilot_picker.sources.http import HttpClient, Limits

QUICK = Limits(connect_timeout_ms=5_000, timeout_ms=10_000, max_bytes=1_000)
SHORT = Limits(connect_timeout_ms=5_000, timeout_ms=150, max_bytes=1_000)
CONNECT = Limits(connect_timeout_ms=100, timeout_ms=10_000, max_bytes=1_000)


async def kind_of(client: HttpClient, limits: Limits = QUICK) -> ErrorKind:
    with pytest.raises(FetchError) as error:
        await client.get("/x", {}, limits)
    return error.value.kind


async def test_one_connection_for_many_gets():
    async with serving(lambda request: answer(request.target.encode())) as server:
        client = HttpClient("127.0.0.1", server.port)
        for number in range(3):
            response = await client.get(f"/m?{number}", {"X-A": "b"}, QUICK)
            assert response.body == f"/m?{number}".encode()
        client.close()
        assert server.connections == 1
        assert server.requests[0].headers == {
            "host": f"127.0.0.1:{server.port}",
            "accept-encoding": "identity",
            "x-a": "b",
        }


async def test_a_closed_kept_connection_is_replaced():
    async with serving(lambda _: answer(b"a", Connection="close")) as server:
        client = HttpClient("127.0.0.1", server.port)
        for _ in range(3):
            assert (await client.get("/", {}, QUICK)).body == b"a"
        assert server.connections == 3
        client.close()


async def test_a_kept_connection_closed_as_the_next_get_comes():
    replies = [answer(b"1"), None, answer(b"2")]
    async with serving(lambda _: replies.pop(0)) as server:
        client = HttpClient("127.0.0.1", server.port)
        assert (await client.get("/", {}, QUICK)).body == b"1"
        assert (await client.get("/", {}, QUICK)).body == b"2"
        assert server.connections == 2
        client.close()


async def test_a_new_connection_that_is_closed_is_not_tried_again():
    async with serving(lambda _: None) as server:
        client = HttpClient("127.0.0.1", server.port)
        assert await kind_of(client) is ErrorKind.RESET
        assert len(server.requests) == 1


async def test_half_an_answer_is_no_answer():
    async with serving(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf") as server:
        client = HttpClient("127.0.0.1", server.port)
        task = asyncio.create_task(kind_of(client))
        while not server.requests:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        await server.stop()
        assert await task is ErrorKind.RESET


async def test_a_hang_ends_with_the_time_out_and_not_with_the_next_answer():
    async def late():
        await asyncio.sleep(0.4)
        return answer(b"late")

    async with serving(lambda request: late() if request.target == "/x" else answer(b"now")) as server:
        client = HttpClient("127.0.0.1", server.port)
        assert await kind_of(client, SHORT) is ErrorKind.TIMEOUT
        assert (await client.get("/y", {}, QUICK)).body == b"now"
        client.close()


async def test_a_server_that_drips_bytes_does_not_outlive_the_time_out():
    async def serve(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.03)
        except OSError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        client = HttpClient("127.0.0.1", server.sockets[0].getsockname()[1])
        assert await kind_of(client, SHORT) is ErrorKind.TIMEOUT


async def test_connection_refused():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert await kind_of(HttpClient("127.0.0.1", port)) is ErrorKind.REFUSED


async def test_a_host_that_does_not_answer_the_connect():
    # A full backlog is what a black hole looks like from here.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        try:
            for _ in range(8):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
                fillers.append(filler)
            await asyncio.sleep(0.05)
            kind = await kind_of(HttpClient("127.0.0.1", listener.getsockname()[1]), CONNECT)
            assert kind is ErrorKind.CONNECT_TIMEOUT
        finally:
            for filler in fillers:
                filler.close()


async def test_an_answer_above_the_limit():
    async with serving(lambda _: answer(b"x" * 1_001)) as server:
        assert await kind_of(HttpClient("127.0.0.1", server.port)) is ErrorKind.TOO_LARGE


async def test_bytes_nobody_asked_for_end_the_connection():
    async with serving(lambda _: answer(b"a") + b"more") as server:
        client = HttpClient("127.0.0.1", server.port)
        assert (await client.get("/", {}, QUICK)).body == b"a"
        assert (await client.get("/", {}, QUICK)).body == b"a"
        assert server.connections == 2
        client.close()


async def test_a_cancelled_get_leaves_no_half_read_answer():
    async def late():
        await asyncio.sleep(0.2)
        return answer(b"late")

    async with serving(lambda request: late() if request.target == "/slow" else answer(b"now")) as server:
        client = HttpClient("127.0.0.1", server.port)
        task = asyncio.create_task(client.get("/slow", {}, QUICK))
        while not server.requests:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.get("/", {}, QUICK)).body == b"now"
        client.close()


async def test_close_fails_a_running_get():
    async with serving(lambda _: asyncio.sleep(30)) as server:
        client = HttpClient("127.0.0.1", server.port)
        task = asyncio.create_task(kind_of(client))
        while not server.requests:
            await asyncio.sleep(0.005)
        client.close()
        assert await task is ErrorKind.RESET


async def test_ipv6():
    try:
        server = await asyncio.start_server(lambda reader, writer: None, "::1", 0)
    except OSError:
        pytest.skip("no IPv6 loopback")
    server.close()
    heads = []

    async def serve(reader, writer):
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer(b"six"))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "::1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = HttpClient("::1", port)
        assert (await client.get("/", {}, QUICK)).body == b"six"
        assert f"Host: [::1]:{port}\r\n".encode() in heads[0]
        client.close()


@pytest.mark.parametrize("target", ["x", "/a b", "/a\r\nb", ""])
async def test_targets_that_would_break_the_request(target):
    with pytest.raises(ValueError):
        await HttpClient("127.0.0.1", 1).get(target, {}, QUICK)


async def test_header_values_that_would_break_the_request():
    with pytest.raises(ValueError):
        await HttpClient("127.0.0.1", 1).get("/", {"A": "b\r\nC: d"}, QUICK)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1: (certificate, key)."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=engine", "-addext", "subjectAltName=IP:127.0.0.1,DNS:engine.test",
         "-out", str(paths[0]), "-keyout", str(paths[1])],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return paths


async def test_tls_with_a_known_and_an_unknown_certificate(certificate):
    async def serve(reader, writer):
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer(b"secret"))
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.transport.abort()

    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(*certificate)
    known = ssl.create_default_context(cafile=str(certificate[0]))
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_side) as server:
        port = server.sockets[0].getsockname()[1]
        client = HttpClient("127.0.0.1", port, tls=known)
        for _ in range(2):
            assert (await client.get("/", {}, QUICK)).body == b"secret"
        client.close()
        named = HttpClient("127.0.0.1", port, tls=known, server_name="engine.test")
        assert (await named.get("/", {}, QUICK)).body == b"secret"
        named.close()
        assert await kind_of(HttpClient("127.0.0.1", port, tls=known, server_name="other.test")) is ErrorKind.TLS
        assert await kind_of(HttpClient("127.0.0.1", port, tls=ssl.create_default_context())) is ErrorKind.TLS


async def test_tls_to_a_server_that_speaks_plain_text():
    async with serving(lambda _: answer(b"plain")) as server:
        client = HttpClient("127.0.0.1", server.port, tls=ssl.create_default_context())
        assert await kind_of(client, SHORT) in (ErrorKind.TLS, ErrorKind.TIMEOUT, ErrorKind.CONNECT_TIMEOUT)
