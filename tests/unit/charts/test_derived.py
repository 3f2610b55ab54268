"""What is derived in charts/ is current, and says no more than its sources."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from poolpilot_kube import cleanup
from poolpilot_lab import charts
from poolpilot_operator import rights
from poolpilot_picker.config.policies import POLICIES
from poolpilot_picker.sources.engines import BUILTIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("poolpilot", "poolpilot-crds", "poolpilot-standalone")
SCHEMAS = {name: json.loads((charts.CHARTS / name / "values.schema.json").read_text()) for name in NAMES}
PROJECT = (charts.ROOT / "pyproject.toml").read_text()


def test_what_is_derived_is_current() -> None:
    files = charts.derived()
    for path, content in files.items():
        assert path.read_text() == content, f"{path}: make charts"
    assert charts.surplus(files) == [], "make charts"


def test_definitions_are_copies_of_the_one_source() -> None:
    sources = {path.name: path.read_bytes() for path in charts.CRDS.glob("*.yaml")}
    ours, others = (
        {path.name: path.read_bytes() for path in (charts.CHARTS / "poolpilot" / folder).iterdir()}
        for folder in ("crds", "upstream-crds")
    )
    assert ours | others == sources
    # What lies in crds/ is applied by Helm 4 to what there is already: nothing of others may.
    assert set(ours) == {name for name in sources if name.startswith("poolpilot.dev_")}
    managed = {path.name: path for path in (charts.CHARTS / "poolpilot-crds/templates").iterdir()}
    assert set(managed) == {name for name in sources if name.startswith("poolpilot.dev_")}, "ours, none of others"
    for name, path in managed.items():
        definition = yaml.safe_load(path.read_text())
        assert definition["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert definition == yaml.safe_load(sources[name])


@pytest.mark.parametrize("text", ["kind: X\n", "metadata:\n  name: x\nspec: '{{ x }}'\n"])
def test_a_definition_that_cannot_be_a_template_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "poolpilot.dev_x.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"poolpilot\.dev_x\.yaml"):
        charts.derived(tmp_path / "charts", tmp_path)


def fields(schema: dict[str, Any], root: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, given in schema.get("properties", {}).items():
        field = charts.resolved(given, root)
        yield f"{path}{name}", field
        if charts.has_children(field):
            yield from fields(field, root, f"{path}{name}.")
        yield from fields(field.get("items", {}), root, f"{path}{name}[].")


@pytest.mark.parametrize("name", NAMES)
def test_every_value_is_described_and_has_a_type(name: str) -> None:
    for path, field in fields(SCHEMAS[name], SCHEMAS[name]):
        assert field.get("description", "").endswith((".", ")", ":")), path
        assert "type" in field, path
        if "[]" not in path and not charts.has_children(field) and "filter." not in path:
            assert "default" in field, path


@pytest.mark.parametrize("name", NAMES)
def test_values_with_names_of_their_own_take_no_others(name: str) -> None:
    """A mistyped value is told, not passed over."""
    for path, field in (("", SCHEMAS[name]), *fields(SCHEMAS[name], SCHEMAS[name])):
        if "properties" in field:
            assert field["additionalProperties"] is False, path


@pytest.mark.parametrize("name", NAMES)
def test_values_and_schema_have_the_same_names(name: str) -> None:
    values = yaml.safe_load((charts.CHARTS / name / "values.yaml").read_text())

    def named(value: Any, schema: dict[str, Any]) -> None:
        for key, given in schema["properties"].items():
            field = charts.resolved(given, SCHEMAS[name])
            assert key in value
            if charts.has_children(field):
                named(value[key], field)
            else:
                assert value[key] == field["default"]
        assert set(value) == set(schema["properties"])

    named(values, SCHEMAS[name])


@pytest.mark.parametrize("name", NAMES)
def test_versions_follow_the_project(name: str) -> None:
    about = yaml.safe_load((charts.CHARTS / name / "Chart.yaml").read_text())
    [version] = [line.split('"')[1] for line in PROJECT.splitlines() if line.startswith("version = ")]
    assert about["appVersion"] == version
    # SemVer writes 0.1.0.dev0 like this.
    assert about["version"] == version.replace(".dev", "-dev.")
    assert about["name"] == name and about["kubeVersion"] == ">=1.31.0-0"
    for image in yaml.safe_load(about["annotations"].get("artifacthub.io/images", "[]")):
        if "poolpilot" in image["image"]:
            assert image["image"].endswith(f":{version}")


def test_definitions_are_announced() -> None:
    about = yaml.safe_load((charts.CHARTS / "poolpilot/Chart.yaml").read_text())["annotations"]
    announced = {one["name"] for one in yaml.safe_load(about["artifacthub.io/crds"])}
    assert announced == {
        yaml.safe_load(path.read_text())["metadata"]["name"] for path in charts.CRDS.glob("poolpilot.dev_*")
    }
    assert {one["kind"] for one in yaml.safe_load(about["artifacthub.io/crdsExamples"])} == {"Picker", "LoraAdapter"}


def test_policies_and_engines_are_those_of_the_picker() -> None:
    values = SCHEMAS["poolpilot-standalone"]["properties"]
    assert values["policy"]["enum"] == list(POLICIES)
    assert values["engine"]["enum"] == sorted(BUILTIN)


def test_clean_up_knows_all_that_the_operator_makes() -> None:
    """But Secrets: they go with their Picker, and its Job may not list any."""
    made = {
        (rule.group, resource)
        for rule in (*rights.OPERATOR, *rights.OPERATOR_CLUSTER)
        for resource in rule.resources
        if "delete" in rule.verbs
    }
    cleaned = {(one.group, one.plural) for one in (*cleanup.NAMESPACED, *cleanup.CLUSTER)}
    assert cleaned == made - {("", "secrets")}
