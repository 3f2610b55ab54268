"""The flags of `poolpilot bench routing --peers`. Every mistake names flag, value and what is allowed."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from poolpilot_lab.bench.errors import UsageError
from poolpilot_lab.bench.flags import check_epp, names, whole
from poolpilot_lab.bench.peers.catalogue import BY_NAME, CONTESTANTS, LLM_D_EPP, POOLPILOT, Contestant
from poolpilot_lab.bench.peers.scenarios import SCENARIOS, Scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM: Final = "poolpilot bench routing --peers"
ALL: Final = "all"
MOST_SEEDS: Final = 1_000
MOST_REQUESTS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Options:
    """What to run."""

    contestants: tuple[Contestant, ...]
    """Ours first, always: the others are compared with it."""
    scenarios: tuple[Scenario, ...]
    seeds: tuple[int, ...]
    requests: int | None
    """Of one run; None: the scenario's."""
    epp: Path | None
    out: Path


def parse(argv: Sequence[str]) -> Options:
    """Reads the flags. Raises UsageError; exits with 2 on flags that argparse refuses."""
    given = _parser().parse_args(argv)
    epp: Path | None = given.epp
    return Options(
        contestants=_contestants(given.peers, epp),
        scenarios=tuple(SCENARIOS[name] for name in names("--scenario", given.scenario, SCENARIOS)),
        seeds=tuple(range(1, whole("--seeds", given.seeds, 1, MOST_SEEDS) + 1)),
        requests=None if given.requests is None else whole("--requests", given.requests, 1, MOST_REQUESTS),
        epp=epp,
        out=given.out,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="poolpilot bench routing",
        description="Real routers, one after the other, each in front of the same stand-in engines with the same "
        "clients. Routers from Python packages are installed into the user's cache at first use. Writes peers.json, "
        "report.md and logs.",
        epilog=f"NAMES: {', '.join(BY_NAME)}; {POOLPILOT.name} runs always, {LLM_D_EPP.name} needs --epp.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--peers", nargs="?", const=ALL, default=ALL, metavar="NAMES", help="comma-separated (default: all)")
    add("--epp", type=Path, metavar="PATH", help=f"binary of llm-d's endpoint picker, for {LLM_D_EPP.name}")
    add("--scenario", default=",".join(SCENARIOS), metavar="NAMES", help="comma-separated (default: %(default)s)")
    add("--seeds", type=int, default=3, metavar="N", help="clients and hidden engine speeds (default: %(default)s)")
    add("--requests", type=int, metavar="N", help="of one run (default: the scenario's)")
    add("--out", type=Path, required=True, metavar="DIR", help="for results and logs")
    return parser


def _contestants(text: str, epp: Path | None) -> tuple[Contestant, ...]:
    named = BY_NAME.keys() - ({LLM_D_EPP.name} if epp is None else set())
    if text.strip() != ALL:
        named = {POOLPILOT.name, *names("--peers", text, [*BY_NAME, ALL])}
        if ALL in named:
            raise UsageError(f"--peers: {ALL!r} cannot be combined with names")
    check_epp(epp, "--peers", named, LLM_D_EPP.name)
    return tuple(contestant for contestant in CONTESTANTS if contestant.name in named)
