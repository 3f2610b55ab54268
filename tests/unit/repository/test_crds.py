"""The CRDs as files: documented, bounded, named right, in step with the code; their page is current."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from poolpilot_lab.api_reference import CRDS, PAGE, api_reference
from poolpilot_picker.config.policies import DEFAULT_POLICY, POLICIES
from poolpilot_picker.config.seat import MOST_WORKERS

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFINITIONS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))}


def schema_of(definition: dict[str, Any]) -> dict[str, Any]:
    [version] = definition["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, schema) of everything below, items and values of maps too."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from fields(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield f"{path}[]", schema[key]
            yield from fields(schema[key], f"{path}[]")


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == api_reference(), "make api-reference"


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_every_field_is_documented(definition: dict[str, Any]) -> None:
    for path, field in fields(schema_of(definition)):
        assert field.get("description") or path == ".metadata", path
        assert "x-kubernetes-preserve-unknown-fields" not in field, path


@pytest.mark.parametrize(
    "definition", [one for name, one in DEFINITIONS.items() if name.startswith("poolpilot.dev_")], ids=lambda one: ""
)
def test_our_lists_and_texts_are_bounded_and_lists_say_how_they_merge(definition: dict[str, Any]) -> None:
    """Bounds keep rules cheap; without a list type two writers of one list overwrite each other."""
    for path, field in fields(schema_of(definition)):
        if field.get("type") == "array":
            assert "maxItems" in field, path
            assert "x-kubernetes-list-type" in field, path


@pytest.mark.parametrize(("file", "definition"), DEFINITIONS.items(), ids=DEFINITIONS)
def test_files_are_named_by_group_and_plural(file: str, definition: dict[str, Any]) -> None:
    spec = definition["spec"]
    assert file == f"{spec['group']}_{spec['names']['plural']}"
    assert definition["metadata"]["name"] == f"{spec['names']['plural']}.{spec['group']}"
    assert spec["versions"][0]["subresources"]["status"] == {}


def test_the_picker_kind_allows_what_the_picker_allows() -> None:
    spec = schema_of(DEFINITIONS["poolpilot.dev_pickers"])["properties"]["spec"]["properties"]
    assert spec["config"]["properties"]["policy"]["enum"] == list(POLICIES)
    assert spec["config"]["default"] == {"policy": DEFAULT_POLICY}
    assert spec["workers"]["maximum"] == MOST_WORKERS


def test_annotations_that_others_read() -> None:
    """Without the first an API server refuses a CRD of this group; suites and tools read the others."""
    read = {file: definition["metadata"].get("annotations", {}) for file, definition in DEFINITIONS.items()}
    assert read == {
        "inference.networking.k8s.io_inferencepools": {
            "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api-inference-extension/pull/1173",
            "inference.networking.k8s.io/bundle-version": "v1.6.0",
        },
        "llm-d.ai_inferencemodelrewrites": {"llm-d.ai/bundle-version": "v0.10.0"},
        "llm-d.ai_inferenceobjectives": {"llm-d.ai/bundle-version": "v0.10.0"},
        "poolpilot.dev_loraadapters": {},
        "poolpilot.dev_pickers": {},
    }
