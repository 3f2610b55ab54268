"""`python -m poolpilot_lab.bench.soak`: flags → soak → report. Exit code 1 where anything failed or was lost."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec
import uvloop

from poolpilot_lab.bench.soak.run import Part, Plan, soak


def said(part: Part) -> str:
    """A part in a few lines."""
    head = (
        f"{part.name}: {part.exchanges:,} exchanges in {part.seconds:,.0f} s "
        f"({part.exchanges / max(part.seconds, 1e-9):,.0f}/s), {part.replies:,} replies, "
        f"{sum(part.connections.values()):,} connections"
    )
    body = (
        f"  whole {part.whole:,}, broken off by the client {part.broken_by_client:,}, "
        f"failed {sum(part.failed.values()):,}, still booked or open {part.left or 'nothing'}, "
        f"exit code {part.exit_code}"
    )
    memory = (
        f"  memory {part.rss_mb:,.1f} MB, at most {part.most_rss_mb:,.1f} MB, after warm-up {part.slope_bytes:+,.1f} "
        f"bytes per exchange; processes replaced {part.processes_replaced}"
    )
    lines = [head, body, memory]
    lines += [f"  failed {count:,} ×: {why}" for why, count in part.failed.items()]
    lines += [f"  log: {line}" for line in part.complaints[:20]]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Plays a soak and prints what became of it."""
    parser = argparse.ArgumentParser(
        prog="python -m poolpilot_lab.bench.soak",
        description="Exchanges of every kind on a picker's port, a quarter of them broken off by their clients, over "
        "connections that are wide, narrow, slow, short-lived and aborted.",
    )
    add = parser.add_argument
    add("--requests", type=int, default=1_000_000, metavar="N", help="exchanges (default %(default)s)")
    add("--transport", choices=("wire", "grpc"), default="wire")
    add("--seed", type=int, default=1)
    add("--tls-cert", type=Path, metavar="FILE", help="with --tls-key: a tenth of the exchanges goes over TLS")
    add("--tls-key", type=Path, metavar="FILE")
    add("--recycle-rss-mb", type=int, metavar="MB", help="the picker's flag of that name")
    add("--behind-envoy", type=int, default=0, metavar="N", help="as many more by clients of a real Envoy (default 0)")
    add("--out", type=Path, metavar="DIR", help="for logs and results.json (default: a temporary folder)")
    options = parser.parse_args(argv)
    if options.requests < 1:
        parser.error(f"--requests is {options.requests}; allowed is 1 or more")
    if options.behind_envoy < 0:
        parser.error(f"--behind-envoy is {options.behind_envoy}; allowed is 0 or more")
    if (options.tls_cert is None) != (options.tls_key is None):
        parser.error("--tls-cert and --tls-key go together")
    tls = (options.tls_cert, options.tls_key) if options.tls_cert is not None else None
    plan = Plan(
        requests=options.requests,
        transport=options.transport,
        seed=options.seed,
        tls=tls,
        recycle_rss_mb=options.recycle_rss_mb,
        behind_envoy=options.behind_envoy,
    )
    with tempfile.TemporaryDirectory(prefix="poolpilot-soak-") as temporary:
        folder = options.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        parts = uvloop.run(soak(plan, folder))
        for part in parts:
            print(said(part))
        (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(parts)))
    return 0 if all(part.clean for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
