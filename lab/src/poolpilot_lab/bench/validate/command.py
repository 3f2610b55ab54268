"""`poolpilot bench validate --engine NAME|FILE --silicon CSV`: closed loops in the engine model against measured ones.

The CSV has the columns isl_tokens, osl_tokens, concurrency and tpot_ms (means of closed-loop runs with fixed lengths);
a row is replayed with the same lengths and concurrency. Only time per output token is compared: arrival phasing and
chunk budget decide the time to first token, and are not published with such rows.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from poolpilot_lab.bench.errors import UsageError
from poolpilot_lab.bench.routing.engine_file import find_engine
from poolpilot_lab.bench.validate.published import compare
from poolpilot_lab.engine.model import Accelerator, Engine, EngineSettings, Sequence

if TYPE_CHECKING:
    from poolpilot_lab.engine.model import Profile

COLUMNS: Final = ("isl_tokens", "osl_tokens", "concurrency", "tpot_ms")
ROUNDS: Final = 6
"""Requests per concurrent client; the first and the last of each are not measured."""


class Row(NamedTuple):
    """One measured run."""

    prompt: int
    output: int
    concurrency: int
    tpot_ms: float


def main(argv: list[str]) -> int:
    """Prints the table of errors. 0: printed; 2: wrong flags or files."""
    parser = argparse.ArgumentParser(
        prog="poolpilot bench validate", description="Time per output token of the engine model against measured rows."
    )
    parser.add_argument("--engine", metavar="NAME|FILE", help="a built-in engine or a file of one")
    parser.add_argument("--silicon", type=Path, metavar="CSV", help="measured rows")
    parser.add_argument(
        "--published", type=Path, metavar="FILE", help="a published table of the shared-prompt workload"
    )
    given = parser.parse_args(argv)
    try:
        if given.published is not None:
            compare(given.published)
            return 0
        if given.engine is None or given.silicon is None:
            raise UsageError("needs --engine NAME|FILE and --silicon CSV, or --published FILE")
        profile, rows = find_engine(given.engine), read_rows(given.silicon)
    except UsageError as error:
        print(f"poolpilot bench validate: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{'prompt':>7}{'output':>7}{'concurrency':>12}{'measured ms':>12}{'model ms':>9}{'error %':>8}")
    errors = []
    for row in rows:
        simulated = closed_loop_tpot_ms(profile, row)
        off = simulated / row.tpot_ms - 1.0
        errors.append(off)
        print(f"{row.prompt:7}{row.output:7}{row.concurrency:12}{row.tpot_ms:12.2f}{simulated:9.2f}{100 * off:+8.1f}")
    count = len(errors)
    print(
        f"{count} rows: mean absolute error {100 * sum(map(abs, errors)) / count:.1f} %, "
        f"bias {100 * sum(errors) / count:+.1f} %. Time to first token is not validated."
    )
    return 0


def read_rows(path: Path) -> list[Row]:
    """Raises UsageError that names line and column."""
    rows: list[Row] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"--silicon: {path}: the column(s) {', '.join(missing)} are missing")
            for number, row in enumerate(reader, 2):
                try:
                    made = Row(
                        int(row["isl_tokens"]),
                        int(row["osl_tokens"]),
                        int(row["concurrency"]),
                        float(row["tpot_ms"]),
                    )
                except (TypeError, ValueError) as error:
                    raise UsageError(f"--silicon: {path}:{number}: {error}") from None
                if made.prompt < 1 or made.output < 2 or made.concurrency < 1 or not made.tpot_ms > 0:
                    needed = "isl_tokens ≥ 1, osl_tokens ≥ 2, concurrency ≥ 1, tpot_ms > 0"
                    raise UsageError(f"--silicon: {path}:{number}: needs {needed}")
                rows.append(made)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"--silicon: {path}: cannot be read: {error}") from None
    if not rows:
        raise UsageError(f"--silicon: {path}: holds no rows")
    return rows


def closed_loop_tpot_ms(profile: Profile, row: Row) -> float:
    """Mean time per output token; every request that ends is replaced at once, ends of the run left out."""
    longest = row.prompt + row.output
    blocks = max(profile.kv_tokens, longest) // 16 + 1
    settings = EngineSettings(blocks, max_num_seqs=1_024, max_model_len=max(longest, 32_768))
    engine = Engine(settings, Accelerator(profile))
    left = row.concurrency * (ROUNDS - 1)
    for _ in range(row.concurrency):
        engine.add(Sequence(row.prompt, row.output), 0.0)
    done: list[Sequence] = []
    now = 0.0
    while (end := engine.plan(now, 64)) is not None:
        now = end
        for finished in engine.settle(now).finished:
            done.append(finished)
            if left:
                left -= 1
                engine.add(Sequence(row.prompt, row.output), now)
    measured = done[row.concurrency : -row.concurrency]
    return sum((s.last_token - s.first_token) / (row.output - 1) for s in measured) / len(measured)
