"""Certificates that change while the picker runs: real files, real handshakes, on both transports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING

import grpc
import pytest

from extproc_client import DataPlane
from picker_program import PickerProgram
from poolpilot_lab.control_plane.certificates import Authority, KeyPair
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.tls_files import TlsSource

if TYPE_CHECKING:
    from pathlib import Path

NAME = "picker.test"
ADDRESS = "127.0.0.1:9"
"""Nobody listens there."""


class Secret:
    """A mounted Secret: the kubelet writes another folder and lets one link name it, so all files change at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        folder.mkdir()
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (folder / name).symlink_to(f"..data/{name}")

    def hold(self, pair: KeyPair, ca: bytes = b"", key: bytes | None = None) -> None:
        """This from now on; `key` where it is not that of the certificate."""
        self._count += 1
        whole = self.folder / f"..{self._count}"
        whole.mkdir()
        (whole / "tls.crt").write_bytes(pair.certificate)
        (whole / "tls.key").write_bytes(pair.key if key is None else key)
        (whole / "ca.crt").write_bytes(ca)
        draft = self.folder / "..data_tmp"
        draft.symlink_to(whole.name)
        draft.replace(self.folder / "..data")

    @property
    def flags(self) -> list[str]:
        return ["--tls-cert", str(self.folder / "tls.crt"), "--tls-key", str(self.folder / "tls.key")]

    @property
    def source(self) -> TlsSource:
        return TlsSource(self.folder / "tls.crt", self.folder / "tls.key", self.folder / "ca.crt")


@pytest.fixture
def authority() -> Authority:
    return Authority("one")


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path / "secret")


def served(authority: Authority) -> KeyPair:
    return authority.server("picker", [NAME, "127.0.0.1"])


async def presented(port: int) -> bytes:
    """The certificate that a new connection is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        found = writer.get_extra_info("ssl_object").getpeercert(True)
        return ssl.DER_cert_to_PEM_cert(found).encode()
    finally:
        writer.close()


async def shows(picker: PickerProgram, pair: KeyPair) -> None:
    """Waits until new connections are shown a certificate."""
    wanted = ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(pair.certificate.decode())).encode()

    async def so() -> bool:
        return await presented(picker.port) == wanted

    await picker.until(so, "another certificate is shown")


def trusting(ca: Authority, client: KeyPair | None = None) -> grpc.ChannelCredentials:
    if client is None:
        return grpc.ssl_channel_credentials(ca.certificate)
    return grpc.ssl_channel_credentials(ca.certificate, client.key, client.certificate)


async def taken(port: int, credentials: grpc.ChannelCredentials) -> bool:
    """Whether a new client may ask."""
    async with DataPlane(port, credentials=credentials) as plane:
        with contextlib.suppress(grpc.aio.AioRpcError):
            return await plane.health() == "SERVING"
        return False


@pytest.mark.parametrize("transport", ["wire", "grpc"])
async def test_new_connections_get_the_new_certificate_and_others_go_on(
    secret: Secret, authority: Authority, tmp_path: Path, transport: str
) -> None:
    first, other = served(authority), Authority("two")
    secret.hold(first)
    flags = ["--endpoints", ADDRESS, "--transport", transport, *secret.flags]
    async with PickerProgram(tmp_path, *flags) as picker:
        await shows(picker, first)
        async with DataPlane(picker.port, credentials=trusting(authority)) as before:
            held = before.open()
            placed = await held.place()
            second = served(other)
            secret.hold(second)
            await shows(picker, second)
            assert await taken(picker.port, trusting(other))
            assert not await taken(picker.port, trusting(authority))
            await held.answer(placed)
            await held.must_read()
            await held.done()
            again = before.open()
            assert await again.place() == placed, "a connection that is open takes new streams"
            again.reset()
        samples = await picker.samples()
        assert samples['poolpilot_tls_loads_total{result="accepted"}'] == 1
        assert samples['poolpilot_tls_loads_total{result="refused"}'] == 0
        assert picker.said("info", "certificates reloaded")


@pytest.mark.parametrize("transport", ["wire", "grpc"])
async def test_what_is_no_good_is_told_and_the_old_stays(
    secret: Secret, authority: Authority, tmp_path: Path, transport: str
) -> None:
    first, second = served(authority), served(authority)
    secret.hold(first)
    async with PickerProgram(tmp_path, "--endpoints", ADDRESS, "--transport", transport, *secret.flags) as picker:

        async def says(text: str) -> bool:
            return text in (await picker.json("/readyz"))["detail"].get("certificates", "")

        secret.hold(second, key=first.key)
        await picker.until(lambda: says("a PEM certificate and its unencrypted PEM key are needed"), "not told")
        await shows(picker, first)
        assert (await picker.get("/readyz"))[0] == 200
        assert (await picker.samples())['poolpilot_tls_loads_total{result="refused"}'] == 1
        (secret.folder / "..data").unlink()
        await picker.until(lambda: says("cannot be read: No such file"), "not told")
        await shows(picker, first)
        secret.hold(second)
        await shows(picker, second)
        assert "certificates" not in (await picker.json("/readyz"))["detail"]
        errors = [record["message"] for record in picker.log() if record["level"] == "error"]
        assert len(errors) == 2, "each trouble once"
        assert all(message.endswith("the certificates in force stay") for message in errors)


@pytest.mark.parametrize("transport", ["wire", "grpc"])
async def test_another_client_ca(secret: Secret, authority: Authority, tmp_path: Path, transport: str) -> None:
    other, pair = Authority("two"), served(authority)
    ours, theirs = (trusting(authority, one.client("envoy")) for one in (authority, other))
    secret.hold(pair, authority.certificate)
    flags = [*secret.flags, "--client-ca", str(secret.folder / "ca.crt")]
    async with PickerProgram(tmp_path, "--endpoints", ADDRESS, "--transport", transport, *flags) as picker:
        assert await taken(picker.port, ours) and not await taken(picker.port, theirs)
        # Both, for as long as clients change; then the new one alone.
        secret.hold(pair, authority.certificate + "# both – für eine Weile\n".encode() + other.certificate)
        await picker.until(lambda: taken(picker.port, theirs), "the new CA is not taken")
        assert await taken(picker.port, ours)
        secret.hold(pair, other.certificate)

        async def gone() -> bool:
            return not await taken(picker.port, ours)

        await picker.until(gone, "the old CA is still taken")
        assert await taken(picker.port, theirs)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("transport", ["wire", "grpc"])
async def test_a_session_of_before_does_not_vouch_for_a_client(
    secret: Secret, authority: Authority, tmp_path: Path, transport: str, version: ssl.TLSVersion
) -> None:
    other, pair = Authority("two"), served(authority)
    client = authority.client("envoy")
    secret.hold(pair, authority.certificate)
    flags = [*secret.flags, "--client-ca", str(secret.folder / "ca.crt")]
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(*client.write(tmp_path, "client"))
    context.set_alpn_protocols(["h2"])
    async with PickerProgram(tmp_path, "--endpoints", ADDRESS, "--transport", transport, *flags) as picker:
        first = await asyncio.to_thread(greeted, picker.port, context, None)
        assert first is not None
        if transport == "wire":
            again = await asyncio.to_thread(greeted, picker.port, context, first[0])
            assert again is not None and again[1], "sessions are taken up again while the CA stays"
        await picker.until(lambda: taken(picker.port, trusting(authority, client)), "not taken")
        secret.hold(pair, other.certificate)

        async def gone() -> bool:
            return not await taken(picker.port, trusting(authority, client))

        await picker.until(gone, "the old CA is still taken")
        assert await asyncio.to_thread(greeted, picker.port, context, first[0]) is None


def greeted(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession, bool] | None:
    """(session of a connection that was answered, whether it was taken up again); None where the server would not."""
    with socket.create_connection(("127.0.0.1", port), timeout=15.0) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=NAME, session=session) as one:
                one.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
                return (one.session, bool(one.session_reused)) if one.recv(64) and one.session else None
        except (ssl.SSLError, ConnectionError):
            return None


def test_halves_of_two_contents_are_never_offered(secret: Secret, authority: Authority) -> None:
    """What one look finds while the files are being replaced one after the other."""
    secret.hold(served(authority), authority.certificate)
    source = secret.source
    before = source.certificates.files
    second = served(authority)
    (secret.folder / "..1" / "tls.crt").write_bytes(second.certificate)
    half = source._read()
    (secret.folder / "..1" / "tls.key").write_bytes(second.key)
    whole = source._read()
    for found in (before, before, half, whole):
        source._files.look(found)
    assert source.certificates.files == before
    source._files.look(whole)
    assert source.certificates.files == whole
    assert (source.reloads, source.refused, source.problem) == (1, 0, "")


def test_the_old_content_again_ends_the_trouble(secret: Secret, authority: Authority) -> None:
    secret.hold(served(authority), authority.certificate)
    source = secret.source
    good = source.certificates.files
    secret.hold(served(authority), b"nobody")
    bad = source._read()
    for _ in range(3):
        source.offer(bad)
    assert source.refused == 1
    assert source.problem.startswith("--tls-cert") or source.problem.startswith("--client-ca")
    source.offer(good)
    assert source.problem == ""
    source.offer(bad)
    assert source.refused == 2
    with pytest.raises(ConfigurationError, match="--client-ca"):
        _ = secret.source
