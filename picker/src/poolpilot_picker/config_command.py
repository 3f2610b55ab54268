"""`poolpilot config`: checks files, prints the default and the effective configuration, lists the plugin types."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from poolpilot_picker.config.entrypoints import add_user_plugins
from poolpilot_picker.config.load import load
from poolpilot_picker.config.policies import DEFAULT_POLICY, POLICIES, policy_config
from poolpilot_picker.config.registry import Registry, Standing
from poolpilot_picker.config.render import describe_plugin, render_config
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.routing.registry import build_profile, default_registry


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="poolpilot config", description="EndpointPickerConfig files.")
    commands = top.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="check files: exit code 0 when all are good, 2 otherwise")
    check.add_argument("files", nargs="+", metavar="FILE")
    default = commands.add_parser("default", help="print a ready-made configuration with every value written out")
    default.add_argument("--policy", choices=POLICIES, default=DEFAULT_POLICY)
    show = commands.add_parser("show", help="print a file with every default written out")
    show.add_argument("file", metavar="FILE")
    plugins = commands.add_parser("plugins", help="list the plugin types with their parameters and defaults")
    plugins.add_argument("names", nargs="*", metavar="TYPE")
    return top


def main(argv: list[str]) -> int:
    """Runs one of the subcommands; returns the exit code."""
    arguments = parser().parse_args(argv)
    registry = default_registry()
    try:
        add_user_plugins(registry)
        if arguments.command == "check":
            return _check(arguments.files, registry)
        if arguments.command == "plugins":
            return _plugins(arguments.names, registry)
        if arguments.command == "default":
            text, source = policy_config(arguments.policy), f"policy {arguments.policy}"
        else:
            text, source = _read(arguments.file), arguments.file
        sys.stdout.write(render_config(load(text, registry, source)))
    except ConfigurationError as error:
        _complain(error.problems)
        return error.exit_code
    return 0


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8") if file != "-" else sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: byte {error.start} is not UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}") from None


def _check(files: list[str], registry: Registry) -> int:
    code = 0
    for file in files:
        try:
            config = load(_read(file), registry, file)
            build_profile(config)
        except ConfigurationError as error:
            _complain(error.problems)
            code = error.exit_code
            continue
        for warning in config.warnings:
            sys.stdout.write(f"warning: {warning}\n")
        sys.stdout.write(f"{file}: ok ({config.profile.describe()})\n")
    return code


def _complain(problems: tuple[str, ...]) -> None:
    for problem in problems:
        sys.stderr.write(f"{problem}\n")


def _plugins(names: list[str], registry: Registry) -> int:
    chosen = []
    for name in names:
        plugin_type = registry.find(name)
        if plugin_type is None:
            raise ConfigurationError(f"{name} is not a known plugin type; `poolpilot config plugins` lists them")
        chosen.append(plugin_type)
    for plugin_type in chosen or sorted(
        registry, key=lambda each: (each.standing is Standing.REFUSED, min(each.kinds))
    ):
        sys.stdout.write(describe_plugin(plugin_type) + "\n")
    return 0
