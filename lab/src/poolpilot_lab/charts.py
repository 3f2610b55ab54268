"""What is derived in charts/: CRDs, values and pages. Off a request's way: `make charts`.

A chart's values.schema.json is where a value is described: type, default and meaning. Its values.yaml and its README.md
come from there, the CRDs from crds/, the rules of Roles from where operator and doctor state their rights.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from poolpilot_kube import cleanup
from poolpilot_kube.doctor.reading import RIGHTS, RIGHTS_CLUSTER
from poolpilot_operator import rights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT: Final = Path(__file__).parents[3]
CRDS: Final = ROOT / "crds"
CHARTS: Final = ROOT / "charts"
_OURS: Final = "poolpilot.dev_"
_WIDTH: Final = 120
_MADE: Final = "Made from values.schema.json by `make charts`; change it there."
_KEEP: Final = "  annotations:\n    helm.sh/resource-policy: keep\n"
"""Helm leaves such an object where it is when the release goes: with a definition all its objects would go."""


def derived(charts: Path = CHARTS, crds: Path = CRDS) -> dict[Path, str]:
    """Path → content of every derived file. Raises ValueError for a CRD that cannot stand in a chart."""
    files: dict[Path, str] = {}
    for path in sorted(crds.glob("*.yaml")):
        text = path.read_text()
        ours = path.name.startswith(_OURS)
        files[charts / "poolpilot" / ("crds" if ours else "upstream-crds") / path.name] = text
        if ours:
            files[charts / "poolpilot-crds/templates" / path.name] = _kept(path.name, text)
    files[charts / "poolpilot/templates/_rules.tpl"] = _rules()
    for schema_file in sorted(charts.glob("*/values.schema.json")):
        chart, schema = schema_file.parent, json.loads(schema_file.read_text())
        files[chart / "values.yaml"] = "\n".join([f"# {_MADE}", *_values(schema, schema, 0), ""])
        about = yaml.safe_load((chart / "Chart.yaml").read_text())
        files[chart / "README.md"] = _page(about, schema, (chart / "README.head.md").read_text())
    return files


def main() -> int:
    """Writes what differs and deletes copies of CRDs that are no more; exit code 0."""
    files = derived()
    for path, content in files.items():
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
            sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    for path in surplus(files):
        path.unlink()
        sys.stdout.write(f"{path.relative_to(ROOT)} deleted\n")
    return 0


def surplus(files: dict[Path, str], charts: Path = CHARTS) -> list[Path]:
    """Copies whose source is gone."""
    folders = (charts / "poolpilot/crds", charts / "poolpilot/upstream-crds", charts / "poolpilot-crds/templates")
    return [path for folder in folders for path in sorted(folder.glob("*.yaml")) if path not in files]


def _kept(name: str, text: str) -> str:
    before, metadata, after = text.partition("metadata:\n")
    if not metadata or "{{" in text or "annotations:" in after.partition("spec:\n")[0]:
        raise ValueError(f"{name}: a template needs a definition without braces, with `metadata:` and no annotations")
    return f"{before}{metadata}{_KEEP}{after}"


def _rules() -> str:
    """Named templates, each a list of rules, with the reason of each where one is stated."""
    groups: dict[str, Iterable[tuple[dict[str, Any], str]]] = {
        "operator": [(rule.as_rbac(), rule.why) for rule in rights.OPERATOR],
        "home": [(rule.as_rbac(), rule.why) for rule in rights.OPERATOR_HOME],
        "cluster": [(rule.as_rbac(), rule.why) for rule in rights.OPERATOR_CLUSTER],
        "doctor": [(_rule(group, names, "list"), "") for group, names in RIGHTS],
        "doctorCluster": [(_rule(group, names, "list"), "") for group, names in RIGHTS_CLUSTER],
        "cleanup": [(_rule(one.group, [one.plural], "list", "delete"), "") for one in cleanup.NAMESPACED]
        + [(_rule(one.group, [one.plural], *verbs), "") for one, verbs in cleanup.ALSO],
        "cleanupCluster": [(_rule(one.group, [one.plural], "list", "delete"), "") for one in cleanup.CLUSTER],
    }
    lines = ["{{/* Made from the rights that the programs state, by `make charts`; change them there. */}}"]
    for name, rules in groups.items():
        lines += ["", f'{{{{- define "poolpilot.rules.{name}" -}}}}']
        for rule, why in rules:
            lines += [f"# {why}"] if why else []
            lines += [f"- apiGroups: {json.dumps(rule['apiGroups'])}"]
            lines += [f"  {key}: [{', '.join(rule[key])}]" for key in ("resources", "verbs")]
        lines += ["{{- end }}"]
    return "\n".join([*lines, ""])


def _rule(group: str, resources: Iterable[str], *verbs: str) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


# ── values.yaml ──────────────────────────────────────────────────────────────


def _values(schema: dict[str, Any], root: dict[str, Any], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, given in schema["properties"].items():
        field = resolved(given, root)
        yield ""
        yield from _comment(field["description"], indent)
        if has_children(field):
            yield f"{indent}{name}:"
            yield from list(_values(field, root, depth + 1))[1:]
        else:
            yield from (f"{indent}{line}" for line in _dumped({name: field["default"]}))


def _dumped(value: object) -> list[str]:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=_WIDTH).rstrip("\n").split("\n")


def _comment(text: str, indent: str) -> Iterator[str]:
    line = f"{indent}#"
    for word in text.split():
        if len(line) + 1 + len(word) > _WIDTH:
            yield line
            line = f"{indent}#"
        line += f" {word}"
    yield line


# ── README.md ────────────────────────────────────────────────────────────────


def _page(about: dict[str, Any], schema: dict[str, Any], head: str) -> str:
    rows = list(_rows(schema, schema, ""))
    return "\n".join(
        [
            f"# {about['name']}",
            "",
            f"<!-- Made from README.head.md and values.schema.json by `{_MADE.split('`')[1]}`; change it there. -->",
            "",
            about["description"],
            "",
            head.strip(),
            "",
            "## Values",
            "",
            "| value | type | default | what |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


def _rows(schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    for name, given in schema["properties"].items():
        field = resolved(given, root)
        where = f"{path}{name}"
        if has_children(field):
            yield from _rows(field, root, f"{where}.")
            continue
        default = f"`{json.dumps(field['default'], ensure_ascii=False)}`" if "default" in field else ""
        yield f"| `{where}` | {_type(field)} | {default} | {_described(field)} |"
        if field.get("type") == "array" and "properties" in field.get("items", {}):
            yield from _rows(field["items"], root, f"{where}[].")


def _described(field: dict[str, Any]) -> str:
    allowed = [f"one of {', '.join(f'`{one}`' for one in field['enum'])}"] if "enum" in field else []
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        allowed.append(f"{low} to {high}")
    text = " ".join(field["description"].split())
    return (f"{text} ({'; '.join(allowed)})" if allowed else text).replace("|", "\\|")


def _type(field: dict[str, Any]) -> str:
    if field["type"] == "array":
        return f"list of {field.get('items', {}).get('type', 'value')}s"
    if field["type"] == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"map of {field['additionalProperties'].get('type', 'value')}s"
    return str(field["type"])


def resolved(field: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """`field` with what its $ref names; what stands beside it goes before."""
    if "$ref" not in field:
        return field
    target = root["definitions"][field["$ref"].removeprefix("#/definitions/")]
    return {**target, **{key: value for key, value in field.items() if key != "$ref"}}


def has_children(field: dict[str, Any]) -> bool:
    """Whether its values are described one by one; a field with a default of its own is one value."""
    return field["type"] == "object" and "properties" in field and "default" not in field


if __name__ == "__main__":
    sys.exit(main())
