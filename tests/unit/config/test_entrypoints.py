"""Plugins of users' packages: found, or an error that names the package."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from poolpilot_picker.config import entrypoints
from poolpilot_picker.config.entrypoints import GROUP, add_user_plugins
from poolpilot_picker.config.registry import NoParameters, PluginKind, PluginType, Registry
from poolpilot_picker.errors import ConfigurationError


def plugin(name):
    """A scorer type."""
    return PluginType(
        name=name, kinds=frozenset({PluginKind.SCORER}), parameters=NoParameters, summary="", build=lambda _: object()
    )


ONE = plugin("one")
SEVERAL = [plugin("two"), plugin("three")]
NOT_A_TYPE = {"name": "x"}
MIXED = [plugin("four"), "five"]


class Distribution:
    name = "my-plugins"
    version = "1.2"


def point(attribute, name="p", module=__name__):
    """An entry point of the distribution my-plugins."""
    return EntryPoint(name=name, value=f"{module}:{attribute}", group=GROUP)._for(Distribution())


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Makes this very module what the entry points lead to."""
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or __import__("types").ModuleType(__name__))
    for name in ("ONE", "SEVERAL", "NOT_A_TYPE", "MIXED"):
        monkeypatch.setattr(sys.modules[__name__], name, globals()[name], raising=False)


def test_a_type_or_a_list_of_types():
    registry = Registry()
    assert add_user_plugins(registry, [point("ONE"), point("SEVERAL")]) == ["one", "two", "three"]
    assert registry.find("three") is SEVERAL[1]


def test_every_broken_entry_point_is_named():
    points = [
        point("X", "a", "no_such_module"),
        point("MISSING", "b"),
        point("NOT_A_TYPE", "c"),
        point("MIXED", "d"),
        point("ONE"),
        point("ONE", "e"),
    ]
    with pytest.raises(ConfigurationError) as caught:
        add_user_plugins(Registry(), points)
    said = caught.value.problems
    assert said[0] == (
        "entry point a (no_such_module:X) of my-plugins 1.2 cannot be loaded: "
        "ModuleNotFoundError: No module named 'no_such_module'"
    )
    assert "entry point b" in said[1]
    assert "AttributeError" in said[1]
    assert said[2].endswith("of my-plugins 1.2 is dict; expected a PluginType, or a list of them")
    assert said[3].endswith("of my-plugins 1.2 is list; expected a PluginType, or a list of them")
    assert said[4].startswith(
        f"plugin type 'one' of entry point e ({__name__}:ONE) of my-plugins 1.2 is already registered"
    )
    assert len(said) == 5


def test_the_group_is_asked_for(monkeypatch):
    asked = {}
    monkeypatch.setattr(entrypoints.metadata, "entry_points", lambda **filters: asked.update(filters) or [point("ONE")])
    assert add_user_plugins(Registry()) == ["one"]
    assert asked == {"group": "poolpilot.plugins"}
