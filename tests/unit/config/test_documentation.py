"""docs/configuration.md says what is: its examples load, and its tables name every plugin type, setting and gate."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from poolpilot_picker.config.load import load
from poolpilot_picker.config.policies import POLICIES
from poolpilot_picker.config.registry import PluginType, Standing
from poolpilot_picker.config.sections import GATES
from poolpilot_picker.config.settings import PoolPilotSettings
from poolpilot_picker.routing.registry import build_profile, default_registry

PAGE = (Path(__file__).parents[3] / "docs/configuration.md").read_text()


def blocks(language):
    """The code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def section(title):
    """The text under a heading, up to the next of the same level."""
    level = title.split(" ")[0]
    found = re.search(rf"^{re.escape(title)}\n(.*?)(?=^{level} |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def rows(text):
    """Cells of the tables in a text, without their heads."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [cells for cells in lines if not set(cells[0]) <= set("- ") and cells[0] not in {"type", "what", "setting"}]


def registry():
    """The types, with that of the page's own example."""
    made = default_registry()
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(block, names)
    for value in names.values():
        if isinstance(value, PluginType):
            made.add(value, "the page")
    return made


@pytest.mark.parametrize("text", blocks("yaml"))
def test_examples_load_without_warnings(text):
    config = load(text, registry(), "example")
    build_profile(config)
    assert config.warnings == ()


def names_in(text):
    """Names in code marks."""
    return set(re.findall(r"`([^`]+)`", text))


def test_every_type_that_runs_has_a_row():
    listed = set().union(*(names_in(cells[0]) for cells in rows(section("## Plugins that run"))))
    runs = {each.name for each in default_registry() if each.standing is Standing.RUNS and each.build}
    assert listed == runs


def test_every_parameter_of_a_type_that_runs_is_in_its_row():
    for cells in rows(section("## Plugins that run")):
        [name] = names_in(cells[0])
        plugin_type = default_registry().find(name)
        if name.startswith("predicted-finish") or name.endswith("-picker") or "as the scorer" in cells[1]:
            continue
        for field in msgspec.structs.fields(plugin_type.parameters):
            assert field.encode_name in names_in(cells[1]), (name, field.encode_name)


def test_every_type_that_does_not_run_has_a_row_that_says_what_happens():
    happens = {}
    for cells in rows(section("## Plugins that are known but not run").split("### ")[0]):
        first = cells[0].replace("(old: `tokenizer`)", "")
        happens.update(dict.fromkeys(names_in(first), cells[1]))
    others = {each.name: each for each in default_registry() if not each.build}
    assert set(happens) == set(others)
    starts = {Standing.RUNS: "accepted", Standing.WARNS: "warn", Standing.REFUSED: "refused"}
    for name, plugin_type in others.items():
        assert happens[name].startswith(starts[plugin_type.standing]), name


def test_every_setting_has_a_row_with_its_default():
    listed = {cells[0].strip("`"): cells[1] for cells in rows(section("## Settings of poolpilot"))}

    def leaves(value, path=""):
        for field in msgspec.structs.fields(type(value)):
            held = getattr(value, field.name)
            if isinstance(held, msgspec.Struct):
                yield from leaves(held, f"{path}{field.encode_name}.")
            else:
                yield path + field.encode_name, held

    settings = dict(leaves(PoolPilotSettings()))
    assert set(listed) == set(settings)
    for name, default in settings.items():
        if default is not None:
            assert json.loads(listed[name]) == msgspec.json.decode(msgspec.json.encode(default)), name


def test_every_policy_and_gate_is_named():
    assert set(POLICIES) <= names_in(section("### Pickers"))
    assert all(gate in section("### Sections and feature gates") for gate in GATES)


def test_the_python_example_scores():
    from view_builder import make_table, make_view

    text = blocks("yaml")[-1]
    profile = build_profile(load(text, registry(), "example"))
    table = make_table(3, [{}, {"example.com/rack": "r7"}, {}])
    assert profile.decide(make_view(table)) == [1]
