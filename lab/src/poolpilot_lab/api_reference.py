"""docs/api.md from the CRDs: every kind, field, default and rule. Off a request's way: `make api-reference`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[3]
CRDS: Final = ROOT / "crds"
PAGE: Final = ROOT / "docs/api.md"
_OURS: Final = "poolpilot.dev"
_HEAD: Final = """\
# API reference

<!-- Made from crds/ by `make api-reference`; change it there. -->

poolpilot's own kinds, and those of upstream that it reads. Of the upstream kinds this is our text of the schema, for
clusters that lack them; where a cluster has them, what it has holds.
"""
_KEPT: Final = ("apiVersion", "kind", "metadata")
"""Fields that every object has."""
_CONDITION: Final = {"type", "status", "reason", "message", "lastTransitionTime", "observedGeneration"}


def api_reference(folder: Path = CRDS) -> str:
    """The page, Markdown, from all CRDs in `folder`: ours first."""
    definitions = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
    definitions.sort(key=lambda one: (one["spec"]["group"] != _OURS, one["metadata"]["name"]))
    return "\n".join([_HEAD, *(_kind(one) for one in definitions)])


def _kind(definition: dict[str, Any]) -> str:
    spec = definition["spec"]
    names = spec["names"]
    parts = []
    for version in spec["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        called = [names["plural"], *names.get("shortNames", ())]
        lines = [
            f"## {names['kind']}",
            "",
            f"`{spec['group']}/{version['name']}`, {spec['scope'].lower()}, for kubectl: "
            + ", ".join(f"`{name}`" for name in called)
            + ".",
            "",
            schema["description"],
            "",
            "| field | type | default | what |",
            "| --- | --- | --- | --- |",
            *(_row(*field) for field in _fields(schema, "")),
        ]
        rules = list(_rules(schema, ""))
        if rules:
            lines += ["", "Rules:", "", *(f"* `{path}`: {message}" for path, message in rules)]
        columns = version.get("additionalPrinterColumns", ())
        if columns:
            shown = ", ".join(f"{one['name']}{' (wide)' if one.get('priority') else ''}" for one in columns)
            lines += ["", f"`kubectl get` shows: {shown}."]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """(path, schema, required) of every field below, in the order of the file."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        if not path and name in _KEPT:
            continue
        below = f"{path}.{name}" if path else name
        yield below, field, name in required
        if field.get("type") == "array":
            inner, below = field["items"], f"{below}[]"
        else:
            inner = field
        if set(inner.get("properties", ())) != _CONDITION:
            yield from _fields(inner, below)


def _row(path: str, field: dict[str, Any], required: bool) -> str:
    default = f"`{_json(field['default'])}`" if "default" in field else ("required" if required else "")
    text = field["description"].replace("|", "\\|")
    limits = "; ".join(_limits(field))
    return f"| `{path}` | {_type(field)} | {default} | {text}{f' ({limits})' if limits else ''} |"


def _type(field: dict[str, Any]) -> str:
    if field.get("type") == "array":
        inner = field["items"]
        if set(inner.get("properties", ())) == _CONDITION:
            return "list of conditions"
        return f"list of {_type(inner)}s"
    if "additionalProperties" in field:
        return f"map of {_type(field['additionalProperties'])}s"
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    return str(field["type"])


def _limits(field: dict[str, Any]) -> Iterator[str]:
    """Bounds worth reading; patterns are left to the schema."""
    if "enum" in field:
        yield "one of " + ", ".join(f"`{value}`" if value else "empty" for value in field["enum"])
    for low, high, unit in (
        ("minimum", "maximum", ""),
        ("minItems", "maxItems", " entries"),
        ("minProperties", "maxProperties", " entries"),
    ):
        least, most = field.get(low), field.get(high)
        if least is not None and most is not None:
            yield f"{least} to {most}{unit}"
        elif least is not None:
            yield f"at least {least}{unit}"
        elif most is not None:
            yield f"at most {most}{unit}"
    if "maxLength" in field:
        yield f"at most {field['maxLength']} characters"


def _rules(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"{path}{rule.get('fieldPath', '')}", rule["message"]
    for name, field in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield from _rules(field, below)
        if field.get("type") == "array":
            yield from _rules(field["items"], f"{below}[]")


def _json(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{value[0]['type']} {value[0]['status']}"
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).strip()
    return text.removesuffix("...").strip()


def main() -> None:
    """Writes the page."""
    PAGE.write_text(api_reference())
    sys.stdout.write(f"{PAGE}\n")


if __name__ == "__main__":
    main()
