"""`python -m poolpilot_lab.bench.crowd`: flags → crowds → report. Exit code 1 where anything failed or was lost."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec
import uvloop

from poolpilot_lab.bench.crowd.run import Outcome, play
from poolpilot_lab.processes import ProcessError


def said(outcome: Outcome) -> str:
    """In a few lines."""
    queue, stay = outcome.waiting, outcome.open
    text = (
        f"{queue.requests:,} requests of {queue.body_bytes:,} bytes at once, all queued after {queue.arrival_s:.2f} s: "
        f"{queue.cpu_us_in:.0f} µs CPU and {queue.bytes_each / 1000:.1f} kB each ({queue.held_bytes / 1e6:.1f} MB of "
        "bodies held)\n"
        f"  while they wait {100 * queue.still_cpu_share:.1f} % of a processor; {queue.gone:,} clients left, their "
        f"places were free after {queue.gone_s:.2f} s at most\n"
        f"  served one at a time in {queue.served_s:.2f} s: {queue.cpu_us_out:.0f} µs CPU each, at most "
        f"{queue.displaced} places from their turn\n"
        f"{stay.streams:,} streams open after {stay.opened_s:.2f} s: {stay.cpu_us_in:.0f} µs CPU and "
        f"{stay.bytes_each / 1000:.1f} kB each; while they stay {100 * stay.still_cpu_share:.1f} % of a processor; "
        f"closed in {stay.closed_s:.2f} s: {stay.cpu_us_out:.0f} µs CPU each\n"
        f"still booked or open: {outcome.left or 'nothing'}\n"
        f"on {outcome.machine.processor}, {outcome.machine.cores} cores shared with clients, pod and Envoy, load "
        f"{outcome.machine.load_average[0]:.1f}"
    )
    return "\n".join([text, *(f"log: {line}" for line in outcome.complaints[:20])])


def main(argv: list[str]) -> int:
    """Plays both crowds and prints what they cost the picker."""
    parser = argparse.ArgumentParser(
        prog="python -m poolpilot_lab.bench.crowd",
        description="Requests that wait in the picker's queue, and streams that stay open, through a real Envoy.",
    )
    add = parser.add_argument
    add("--queued", type=int, default=2_000, metavar="N", help="requests that wait (default %(default)s)")
    add("--streams", type=int, default=5_000, metavar="N", help="streams that stay open (default %(default)s)")
    add("--bytes", type=int, default=2_000, metavar="N", help="of the text of a request that waits (default 2000)")
    add("--transport", choices=("wire", "grpc"), default="wire")
    add("--out", type=Path, metavar="DIR", help="for logs and results.json (default: a temporary folder)")
    options = parser.parse_args(argv)
    for name, least in (("queued", 10), ("streams", 1), ("bytes", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name} is {getattr(options, name)}; allowed is {least} or more")
    with tempfile.TemporaryDirectory(prefix="poolpilot-crowd-") as temporary:
        folder = options.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            outcome = uvloop.run(play(folder, options.queued, options.streams, options.bytes, options.transport))
        except ProcessError as error:
            print(f"crowd: {error}", file=sys.stderr)
            return 1
        print(said(outcome))
        (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    return 1 if outcome.left or outcome.complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
