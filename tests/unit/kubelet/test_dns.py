"""Packets of names."""

from __future__ import annotations

import ipaddress
import struct

from hypothesis import given
from hypothesis import strategies as st

from poolpilot_lab.kubelet.dns import answer, question

A, AAAA = 1, 28


def asking(name: str, kind: int = A, flags: int = 0x0100) -> bytes:
    labels = b"".join(bytes([len(one)]) + one.encode() for one in name.split("."))
    return struct.pack("!HHHHHH", 7, flags, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def told(packet: bytes, name: str) -> tuple[int, list[str]]:
    """Code and addresses of an answer to `asking(name)`."""
    identity, flags, questions, answers, _, _ = struct.unpack_from("!HHHHHH", packet)
    assert identity == 7 and flags & 0x8000 and questions == 1
    at = len(asking(name))
    records = [packet[at + 16 * index : at + 16 * index + 16] for index in range(answers)]
    assert len(packet) == at + 16 * answers
    return flags & 0xF, [str(ipaddress.IPv4Address(one[12:])) for one in records]


def answered(name: str, addresses: list[str] | None, kind: int = A, flags: int = 0x0100) -> tuple[int, list[str]]:
    asked = question(asking(name, kind, flags))
    assert asked is not None and asked.name == name.lower()
    return told(answer(asked, addresses), name)


def test_answers() -> None:
    assert answered("picker.serving.svc", ["10.96.0.7"]) == (0, ["10.96.0.7"])
    assert answered("Picker.Serving.svc", ["10.1.0.1", "10.1.0.2"]) == (0, ["10.1.0.1", "10.1.0.2"])
    assert answered("picker.serving.svc", []) == (0, [])
    assert answered("picker.serving.svc", ["10.96.0.7"], AAAA) == (0, []), "the name is there, such a record is not"
    assert answered("no.such.svc", None) == (3, [])
    assert answered("picker.serving.svc", ["10.96.0.7"], flags=0x2900) == (4, []), "not a query"


def test_many_addresses_fit_into_a_packet() -> None:
    asked = question(asking("a.b.svc.cluster.local"))
    assert asked is not None
    assert len(answer(asked, [f"10.0.0.{index}" for index in range(200)])) <= 512


@given(st.binary(max_size=80))
def test_no_packet_does_harm(packet: bytes) -> None:
    asked = question(packet)
    if asked is not None:
        assert answer(asked, ["10.0.0.1"])[12:].startswith(asked.section)


@given(st.integers(0, 40))
def test_half_a_packet_is_no_question(length: int) -> None:
    whole = asking("picker.serving.svc.cluster.local")
    assert question(whole) is not None
    assert question(whole[: min(length, len(whole) - 1)]) is None
