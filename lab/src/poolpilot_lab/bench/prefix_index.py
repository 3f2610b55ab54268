"""What the prefix index weighs when it is full, and how long it takes: by kind of prompts, compiled and reference.

Run `python -m poolpilot_lab.bench.prefix_index` (options: --endpoints, --blocks, --cores). An entry is one block at one
endpoint; each row is a process of its own, whose resident memory before and after is compared. Prompts have a head,
one of 40, and blocks of their own; an endpoint holds `--blocks` blocks and takes one prompt after the other.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from poolpilot_picker import compiled
from poolpilot_picker.requests.request import PrefixChain
from poolpilot_picker.state.prefix import prefix_index

BLOCK_TOKENS: Final = 64
HEADS: Final = 40
PROMPTS: Final = ((96, 32), (0, 128), (30, 4), (0, 8), (0, 4), (0, 1))
"""(blocks of the head, blocks of its own)"""
TIMED: Final = 3_000
CORES: Final = ("compiled", "reference")


def _resident_bytes() -> int:
    return 4096 * int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])


def fill(endpoints: int, blocks: int, shared: int, own: int, core: str) -> str:
    """Fills an index, and says what it weighs."""
    compiled.in_force = compiled.load() if core == CORES[0] else None
    rng = random.Random(1)
    ends = [float(BLOCK_TOKENS * (block + 1)) for block in range(shared + own)]
    heads = [[rng.getrandbits(64) for _ in range(shared)] for _ in range(HEADS)]

    def prompt() -> PrefixChain:
        return PrefixChain(hashes=[*rng.choice(heads), *(rng.getrandbits(64) for _ in range(own))], ends=ends)

    before = _resident_bytes()
    index = prefix_index()
    index.resize(endpoints)
    for slot in range(endpoints):
        index.set_capacity(slot, float(BLOCK_TOKENS * blocks))
    while index.tokens().min() < BLOCK_TOKENS * (blocks - own):
        for slot in range(endpoints):
            index.insert(prompt(), slot)
    resident = _resident_bytes() - before
    matches, inserts = [], []
    for number in range(TIMED):
        chain = prompt()
        start = time.perf_counter_ns()
        index.match(chain)
        between = time.perf_counter_ns()
        index.insert(chain, number % endpoints)
        end = time.perf_counter_ns()
        matches.append(between - start)
        inserts.append(end - between)
    match, insert = (sorted(times)[TIMED // 2] / 1000.0 for times in (matches, inserts))
    counted, weighed = index.memory_bytes / index.entries, resident / index.entries
    return (
        f"{shared:6}{own:6}  {core:10}{index.entries:10}{len(index):10}{counted:10.1f}{weighed:10.1f}"
        f"{resident / 2**20:8.0f}{match:8.1f}{insert:8.1f}"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=31_250)
    parser.add_argument("--cores", nargs="+", choices=CORES, default=[CORES[0]])
    parser.add_argument("--row", nargs=2, type=int, metavar=("SHARED", "OWN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        shared, own = options.row
        print(fill(options.endpoints, options.blocks, shared, own, options.cores[0]))
        return
    print("shared   own  core         entries    blocks   B counted  B RSS  RSS MiB  match  insert, µs")
    sys.stdout.flush()
    for shared, own in PROMPTS:
        for core in options.cores:
            command = [sys.executable, "-m", "poolpilot_lab.bench.prefix_index", "--row", str(shared), str(own)]
            command += ["--endpoints", str(options.endpoints), "--blocks", str(options.blocks), "--cores", core]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
