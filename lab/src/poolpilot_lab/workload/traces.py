"""Readers of recorded request traces: Mooncake's JSONL, Azure's CSV, and a plain JSONL of our own. Times are scaled.

Rows keep their order; `rate` sets the mean rate by scaling all times alike. Requests are never left out in between:
dropping some would remove the prefixes of others. When more are asked for than there are, the trace starts again with
other prefixes.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import random
from datetime import datetime
from pathlib import Path  # noqa: TC003  (a partial of these functions is pickled with its arguments)
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from poolpilot_lab.workload.calls import Call, Traffic, limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Format = Literal["mooncake", "azure", "jsonl"]
FORMATS: Final[tuple[Format, ...]] = ("mooncake", "azure", "jsonl")
MOONCAKE_BLOCK: Final = 512
MOONCAKE_TICK_MS: Final = 3_000.0
"""Arrivals are recorded in ticks of so much; each is moved by a uniform part of it."""
PLAIN_BLOCK: Final = 64
_JITTER_SEED: Final = "ticks"


class TraceError(ValueError):
    """A trace file that cannot be read; says file, line, field and what is allowed."""


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


class _Plain(msgspec.Struct):
    t: float
    input_tokens: int
    output_tokens: int
    model: str = ""
    adapter: str = ""
    tenant: str = ""
    priority: int = 0
    session: str = ""
    blocks: list[int | str] = []
    block_tokens: int = PLAIN_BLOCK


def read_trace(rate: float, count: int, seed: int, *, path: Path, trace_format: Format) -> Traffic:
    """A recorded trace as traffic of `count` requests at a mean `rate`; `seed` draws what the trace does not say.

    Raises TraceError.
    """
    rows = _READERS[trace_format](path)
    if len(rows.calls) < 2:
        raise TraceError(f"{path}: holds {len(rows.calls)} requests, at least 2 are needed")
    if trace_format == "mooncake":
        jitter = random.Random(_JITTER_SEED)
        for call in rows.calls:
            call.at_ms += jitter.uniform(0.0, MOONCAKE_TICK_MS)
    rows.calls.sort(key=lambda call: call.at_ms)
    calls = _repeated(rows.calls, count)
    rng = random.Random(f"{seed}/limits")
    first = calls[0].at_ms
    span = calls[-1].at_ms - first
    if span <= 0.0:
        raise TraceError(f"{path}: all requests have the same time")
    scale = 1000.0 * len(calls) / rate / span
    for call in calls:
        call.at_ms = (call.at_ms - first) * scale
        call.max_tokens = limit(rng, call.output_tokens)
    return Traffic(
        calls, rows.block_tokens, f"{path.name} ({trace_format}), {len(calls)} requests, times × {scale:.3g}"
    )


def _repeated(calls: list[Call], count: int) -> list[Call]:
    if count <= len(calls):
        return calls[:count]
    span = calls[-1].at_ms - calls[0].at_ms
    step = span * (1.0 + 1.0 / len(calls))
    highest = 1 + max((block for call in calls for block in call.blocks), default=0)
    again: list[Call] = []
    for lap in itertools.count():
        for call in calls:
            if len(again) == count:
                return again
            blocks = [block + lap * highest for block in call.blocks]
            again.append(
                Call(
                    call.at_ms + lap * step,
                    call.prompt_tokens,
                    call.output_tokens,
                    blocks,
                    adapter=call.adapter,
                    tenant=call.tenant,
                    session=call.session,
                    priority=call.priority,
                )
            )
    raise AssertionError("itertools.count does not end")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None


def _checked(path: Path, number: int, prompt: int, output: int) -> tuple[int, int]:
    if prompt < 1 or output < 1:
        raise TraceError(f"{path}:{number}: {prompt} input and {output} output tokens; at least 1 of each is allowed")
    return prompt, output


def _mooncake(path: Path) -> Traffic:
    decoder = msgspec.json.Decoder(_Mooncake)
    calls: list[Call] = []
    for number, line in _lines(path):
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise TraceError(f"{path}:{number}: {error}") from None
        prompt, output = _checked(path, number, row.input_length, row.output_length)
        blocks = [block + 1 for block in row.hash_ids[: prompt // MOONCAKE_BLOCK]]
        calls.append(Call(row.timestamp, prompt, output, blocks))
    return Traffic(calls, MOONCAKE_BLOCK, str(path))


def _plain(path: Path) -> Traffic:
    decoder = msgspec.json.Decoder(_Plain)
    calls: list[Call] = []
    names: dict[int | str, int] = {}
    fresh = itertools.count(1)
    size = 0
    for number, line in _lines(path):
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise TraceError(f"{path}:{number}: {error}") from None
        prompt, output = _checked(path, number, row.input_tokens, row.output_tokens)
        if row.block_tokens < 1 or (size and row.blocks and row.block_tokens != size):
            raise TraceError(f"{path}:{number}: block_tokens is {row.block_tokens}; one size ≥ 1 for the whole file")
        if row.blocks:
            size = row.block_tokens
        blocks = []
        for name in row.blocks[: prompt // row.block_tokens]:
            if name not in names:
                names[name] = next(fresh)
            blocks.append(names[name])
        calls.append(
            Call(
                1000.0 * row.t,
                prompt,
                output,
                blocks,
                adapter=row.adapter,
                tenant=row.tenant,
                session=row.session,
                priority=row.priority,
            )
        )
    return Traffic(calls, size or PLAIN_BLOCK, str(path))


def _azure(path: Path) -> Traffic:
    calls: list[Call] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                calls.append(_azure_row(path, number, row))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    fresh = itertools.count(1)
    for call in calls:
        call.blocks = list(itertools.islice(fresh, call.prompt_tokens // PLAIN_BLOCK))
    return Traffic(calls, PLAIN_BLOCK, str(path))


def _azure_row(path: Path, number: int, row: dict[str, Any]) -> Call:
    try:
        # Seven fractional digits; Python reads six.
        time = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26])
        prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise TraceError(
            f"{path}:{number}: needs the columns TIMESTAMP, ContextTokens and GeneratedTokens ({error})"
        ) from None
    prompt, output = _checked(path, number, prompt, output)
    return Call((time - datetime(2023, 1, 1)).total_seconds() * 1000.0, prompt, output)


_READERS: Final[dict[Format, Callable[[Path], Traffic]]] = {"mooncake": _mooncake, "azure": _azure, "jsonl": _plain}
