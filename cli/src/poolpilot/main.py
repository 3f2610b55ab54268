"""Dispatches `poolpilot <subcommand>`: imports a subcommand's package only when it is asked for."""

from __future__ import annotations

import importlib
import sys
from typing import NamedTuple


class Subcommand(NamedTuple):
    """One subcommand: where its `main(argv) -> exit code` lives and what must be installed for it."""

    module: str
    extra: str
    summary: str


SUBCOMMANDS: dict[str, Subcommand] = {
    "picker": Subcommand("poolpilot_picker.main", "picker", "run the endpoint picker (also: poolpilot-picker)"),
    "operator": Subcommand("poolpilot_operator.main", "operator", "run the operator (also: poolpilot-operator)"),
    "config": Subcommand("poolpilot_picker.config_command", "picker", "check an EndpointPickerConfig file"),
    "doctor": Subcommand("poolpilot_kube.doctor.command", "operator", "look at a cluster and say what to change"),
    "envoy-config": Subcommand("poolpilot_picker.envoy.command", "picker", "print an Envoy configuration for a picker"),
    "engine": Subcommand("poolpilot_lab.engine.server", "lab", "run a stand-in vLLM server"),
    "demo": Subcommand("poolpilot_lab.demo.command", "lab", "Envoy, picker and engines on this machine, compared"),
    "bench": Subcommand("poolpilot_lab.bench.command", "lab", "benchmarks: what a picker costs"),
}


def usage() -> str:
    """The list of subcommands, as printed by `poolpilot help`."""
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in SUBCOMMANDS.items()]
    return "\n".join(
        ["usage: poolpilot SUBCOMMAND [options]", "", *lines, "", "poolpilot SUBCOMMAND --help says more."]
    )


def run(name: str, argv: list[str]) -> int:
    """Runs one subcommand; an interrupt, also while it is imported, is one line and the shell's exit code 130."""
    try:
        return _run(name, argv)
    except KeyboardInterrupt:
        print(f"poolpilot {name}: interrupted", file=sys.stderr)
        return 130


def _run(name: str, argv: list[str]) -> int:
    """Imports and runs; a missing extra is an error that says what to install."""
    command = SUBCOMMANDS[name]
    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0].startswith("poolpilot"):
            raise
        print(
            f"poolpilot {name}: the Python package {error.name!r} is missing. "
            f"Install the extra that brings it: pip install 'poolpilot[{command.extra}]'",
            file=sys.stderr,
        )
        return 2
    return int(module.main(argv))


def main(argv: list[str] | None = None) -> int:
    """Entry point of `poolpilot`."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in {"help", "-h", "--help"}:
        print(usage())
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(version("poolpilot"))
        return 0
    if arguments[0] not in SUBCOMMANDS:
        print(f"poolpilot: unknown subcommand {arguments[0]!r}; known: {', '.join(SUBCOMMANDS)}", file=sys.stderr)
        return 2
    return run(arguments[0], arguments[1:])


def picker() -> int:
    """Entry point of `poolpilot-picker`."""
    return run("picker", sys.argv[1:])


def operator() -> int:
    """Entry point of `poolpilot-operator`."""
    return run("operator", sys.argv[1:])
