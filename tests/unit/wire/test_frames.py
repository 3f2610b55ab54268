"""The frames that we send, read by an independent parser; padding; allowances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_picker.extproc.wire import frames
from poolpilot_picker.extproc.wire.errors import Code, ConnectionFault
from poolpilot_picker.extproc.wire.limits import Allowance, Held

if TYPE_CHECKING:
    from collections.abc import Callable

IDS = st.integers(1, frames.MAX_STREAM_ID)


def parsed(data: bytes) -> Frame:
    frame, length = Frame.parse_frame_header(memoryview(data[:9]))
    assert length == len(data) - 9
    frame.parse_body(memoryview(data[9:]))
    return frame


@given(IDS, st.integers(0, 255), st.integers(1, 2**31 - 1), st.binary(min_size=8, max_size=8), st.binary(max_size=20))
def test_frames(stream_id: int, code: int, increment: int, opaque: bytes, debug: bytes) -> None:
    reset = parsed(frames.rst_stream(stream_id, code))
    assert isinstance(reset, RstStreamFrame) and (reset.stream_id, reset.error_code) == (stream_id, code)
    update = parsed(frames.window_update(stream_id, increment))
    assert isinstance(update, WindowUpdateFrame) and update.window_increment == increment
    ping = parsed(frames.ping(opaque, ack=True))
    assert isinstance(ping, PingFrame) and ping.opaque_data == opaque and "ACK" in ping.flags
    away = parsed(frames.goaway(stream_id, code, debug))
    assert isinstance(away, GoAwayFrame)
    assert (away.last_stream_id, away.error_code, away.additional_data) == (stream_id, code, debug)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2**32 - 1)), unique_by=lambda one: one[0]))
def test_settings(values: list[tuple[int, int]]) -> None:
    data = frames.settings(values)
    frame = parsed(data)
    assert isinstance(frame, SettingsFrame) and frame.settings == dict(values)
    assert frames.read_settings(data[9:]) == values


def test_settings_of_a_wrong_size() -> None:
    with pytest.raises(ConnectionFault) as caught:
        frames.read_settings(b"1234567")
    assert caught.value.code is Code.FRAME_SIZE_ERROR


@given(st.binary(max_size=50), st.integers(0, 255))
def test_padding(payload: bytes, padding: int) -> None:
    frame = DataFrame(1, payload, pad_length=padding, flags=["PADDED"])
    assert frames.unpadded(frame.serialize()[9:], frames.PADDED) == payload
    assert frames.unpadded(payload, 0) == payload


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x03ab", b"\xff" * 255])
def test_too_much_padding(payload: bytes) -> None:
    with pytest.raises(ConnectionFault) as caught:
        frames.unpadded(payload, frames.PADDED)
    assert caught.value.code is Code.PROTOCOL_ERROR


def spends(allowance: Allowance, now: float) -> Callable[[float], int]:
    def count(amount: float) -> int:
        for number in range(10_000):
            if not allowance.spend(now, amount):
                return number
        raise AssertionError

    return count


def test_an_allowance() -> None:
    allowance = Allowance(10.0, 5.0)
    assert spends(allowance, 0.0)(1.0) == 10
    assert spends(allowance, 1_000.0)(1.0) == 4, "what was asked for in vain counts too"
    assert spends(Allowance(10.0, 5.0), 0.0)(2.5) == 4
    late = Allowance(10.0, 5.0)
    assert late.spend(0.0, 10.0)
    assert spends(late, 1e9)(1.0) == 10, "never more than the burst"
    assert not Allowance(10.0, 5.0).spend(0.0, 11.0)


def test_a_clock_that_steps_back_gives_nothing() -> None:
    allowance = Allowance(2.0, 1_000.0)
    assert allowance.spend(1_000.0) and allowance.spend(1_000.0)
    assert not allowance.spend(0.0)


def test_held() -> None:
    held = Held(100)
    held.bytes = 60
    assert not held.full(40)
    assert held.full(41)
