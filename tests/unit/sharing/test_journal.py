"""The ring of news: everything arrives while the reader keeps up; what is lost is counted, and never nonsense."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolpilot_picker.sharing import memory as layout
from poolpilot_picker.sharing.journal import JournalReader, JournalWriter
from poolpilot_picker.sharing.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    """Memory with rings of 1 KiB."""
    monkeypatch.setattr(layout, "JOURNAL_BYTES", 1024)
    memory = Memory.create(1)
    yield memory
    os.close(memory.fd)


def test_in_order_and_whole_round_and_round(small: Memory) -> None:
    writer, reader = JournalWriter(small, 0), JournalReader(small, 0)
    sent = []
    for number in range(500):
        payload = bytes([number % 251]) * (number * 7 % 190)
        sent.append((1 + number % 5, payload))
        writer.write(*sent[-1])
        if number % 3 == 2:
            assert reader.news
            assert list(reader.records()) == sent
            assert not reader.news
            sent.clear()
    assert reader.lost == writer.dropped == 0


def test_who_is_too_slow_loses_and_knows(small: Memory) -> None:
    writer, reader = JournalWriter(small, 0), JournalReader(small, 0)
    for number in range(100):
        writer.write(1, bytes([number]) * 100)
    assert list(reader.records()) == [] and reader.lost == 1
    writer.write(2, b"after")
    assert list(reader.records()) == [(2, b"after")] and reader.lost == 1


def test_a_reader_begins_with_what_comes_after_it(small: Memory) -> None:
    writer = JournalWriter(small, 0)
    writer.write(1, b"before")
    reader = JournalReader(small, 0)
    writer.write(1, b"after")
    assert list(reader.records()) == [(1, b"after")]


def test_the_next_on_a_chair_goes_on(small: Memory) -> None:
    reader = JournalReader(small, 0)
    JournalWriter(small, 0).write(1, b"one")
    JournalWriter(small, 0).write(1, b"two")
    assert list(reader.records()) == [(1, b"one"), (1, b"two")]


def test_what_is_too_large_is_not_written(small: Memory) -> None:
    writer, reader = JournalWriter(small, 0), JournalReader(small, 0)
    writer.write(1, bytes(300))
    assert writer.dropped == 1 and not reader.news


def test_half_a_record_is_waited_for_and_then_skipped(small: Memory) -> None:
    """A writer's head may be seen before its bytes; one that died there must not stop its reader for ever."""
    writer, reader = JournalWriter(small, 0), JournalReader(small, 0)
    writer.write(1, b"x" * 40)
    good = bytes(small.journals[0, 16:56])
    small.journals[0, 20] ^= 1
    assert list(reader.records()) == [] and reader.lost == 0
    small.journals[0, 16:56] = list(good)
    assert list(reader.records()) == [(1, b"x" * 40)]
    writer.write(1, b"y" * 40)
    small.journals[0, 80] ^= 1
    for _ in range(2_000):
        assert list(reader.records()) == []
    assert reader.lost == 1
    writer.write(1, b"z")
    assert list(reader.records()) == [(1, b"z")]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(st.tuples(st.integers(1, 5), st.binary(max_size=280)), st.just(None), st.integers(0, 1023)),
        max_size=60,
    )
)
def test_never_nonsense(steps: list[tuple[int, bytes] | int | None]) -> None:
    """Whatever is written, read, or destroyed in between: what is read was written, in order."""
    original = layout.JOURNAL_BYTES
    layout.JOURNAL_BYTES = 1024
    try:
        memory = Memory.create(1)
    finally:
        layout.JOURNAL_BYTES = original
    writer, reader = JournalWriter(memory, 0), JournalReader(memory, 0)
    sent: list[tuple[int, bytes]] = []
    got: list[tuple[int, bytes]] = []
    damaged = False
    for step in steps:
        if step is None:
            got += reader.records()
        elif isinstance(step, int):
            memory.journals[0, step] ^= 0x55
            damaged = True
        else:
            writer.write(*step)
            sent.append(step)
    got += reader.records()
    remaining = iter(sent)
    assert all(any(one == other for other in remaining) for one in got)
    if not damaged and not reader.lost and not writer.dropped:
        assert got == sent
    os.close(memory.fd)
