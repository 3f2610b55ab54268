"""YAML text to structs, strictly: every problem of a file with its line and column, not only the first.

A struct's fields say what is allowed (`msgspec.Meta` for ranges); the nodes of the YAML document say where it stands.
"""

from __future__ import annotations

import functools
import math
import re
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import yaml
from msgspec import inspect

from poolpilot_picker.config.wording import alternatives, choices, show, wanted
from poolpilot_picker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_DEPTH: Final = 64
MAX_NODES: Final = 100_000
"""YAML aliases can make a small text huge or endless; no honest configuration comes near."""

_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?\.?\d+([eE][-+]?\d+)?")


class Bad(Enum):
    """Stands for a value that was reported as a problem."""

    BAD = "bad"


BAD: Final = Bad.BAD


class Place(NamedTuple):
    """Where a value stands in the text, both counted from 1."""

    line: int
    column: int


class OtherFields(NamedTuple):
    """Fields that a struct has not, but that are known: old names, what may be ignored, what cannot be honoured."""

    renamed: Mapping[str, str] = MappingProxyType({})
    unused: Mapping[str, str] = MappingProxyType({})
    refused: Mapping[str, str] = MappingProxyType({})


NO_OTHER_FIELDS: Final = OtherFields()


def place_of(node: yaml.Node) -> Place:
    """Where a node starts."""
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def compose(text: str, source: str) -> yaml.Node:
    """The document's root node.

    Raises:
        ConfigurationError: not YAML, more than one document, or empty.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise ConfigurationError(f"{source}:{place}: not valid YAML: {reason}") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{source}:1:1: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigurationError(f"{source}:1:1: not valid YAML: nested too deeply") from None
    if node is None:
        raise ConfigurationError(f"{source}:1:1: the file is empty; at least apiVersion and kind are needed")
    return node


@functools.lru_cache(maxsize=256)
def struct_type(struct: type[msgspec.Struct]) -> inspect.StructType:
    """A struct's fields with their types and limits."""
    kind = inspect.type_info(struct)
    assert isinstance(kind, inspect.StructType)
    return kind


class Reader:
    """Reads nodes of one document; collects problems, warnings and the place of every path."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._problems: list[tuple[Place, str]] = []
        self._warnings: list[tuple[Place, str]] = []
        self._places: dict[str, Place] = {}
        self._nodes = 0

    @property
    def problems(self) -> tuple[str, ...]:
        """`file:line:column: path: sentence`, by place."""
        return self._sorted(self._problems)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The same for what is accepted all the same."""
        return self._sorted(self._warnings)

    def _sorted(self, found: list[tuple[Place, str]]) -> tuple[str, ...]:
        texts = [f"{self.source}:{line}:{column}: {text}" for (line, column), text in sorted(found)]
        return tuple(dict.fromkeys(texts))

    def problem(self, path: str, sentence: str) -> None:
        """Reports what stands at a path that was read, or at the nearest one around it."""
        self._problems.append((self._place(path), f"{path}: {sentence}" if path else sentence))

    def warn(self, path: str, sentence: str) -> None:
        """The same as a warning."""
        self._warnings.append((self._place(path), f"{path}: {sentence}" if path else sentence))

    def _place(self, path: str) -> Place:
        while path and path not in self._places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self._places.get(path, Place(1, 1))

    def wrote(self, path: str) -> bool:
        """Whether the file has a value at this path."""
        return path in self._places

    def struct(
        self, node: yaml.Node | None, struct: type[msgspec.Struct], path: str, others: OtherFields = NO_OTHER_FIELDS
    ) -> Any:
        """Reads a struct, and fields that it has not but that are known all the same. Without a node: its defaults."""
        return self._struct(node, struct_type(struct), path, others)

    def read(self, node: yaml.Node, kind: inspect.Type, path: str) -> Any:
        """The value of a node, or BAD after reporting why not."""
        self._places[path] = place_of(node)
        self._nodes += 1
        if self._nodes > MAX_NODES or path.count(".") + path.count("[") > MAX_DEPTH:
            if self._nodes <= MAX_NODES + 1:
                self.problem(path, "the document is too large or nested too deeply; look at its YAML aliases")
            return BAD
        match kind:
            case inspect.Metadata():
                return self.read(node, kind.type, path)
            case inspect.CustomType():
                return node
            case inspect.StructType():
                return self._struct(node, kind, path, NO_OTHER_FIELDS)
            case inspect.UnionType():
                return self._union(node, kind, path)
            case inspect.ListType() | inspect.VarTupleType():
                return self._list(node, kind, path)
            case inspect.DictType():
                return self._dict(node, kind, path)
            case inspect.AnyType():
                return self._anything(node, path)
            case _:
                return self._scalar(node, kind, path)

    def _pairs(self, node: yaml.Node, path: str, expected: str) -> list[tuple[str, yaml.Node, yaml.Node]] | Bad:
        """Keys and values of a mapping, `<<` merged, duplicates reported."""
        if not isinstance(node, yaml.MappingNode):
            self.problem(path, f"expected {expected}, found {_describe(node)}")
            return BAD
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                inner = _join(path, key.value)
                if key.value in seen:
                    self._places[inner] = place_of(key)
                    self.problem(inner, "given twice; a field may stand only once")
                seen.add(key.value)
        try:
            yaml.SafeLoader("").flatten_mapping(node)
        except yaml.YAMLError:
            self.problem(path, "`<<` must name a mapping, or a list of mappings")
            return BAD
        pairs: dict[str, tuple[str, yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                where = f"{path}: " if path else ""
                self._problems.append((place_of(key), f"{where}a field name must be text, found {_describe(key)}"))
                continue
            pairs[key.value] = (key.value, key, value)
        return list(pairs.values())

    def _struct(self, node: yaml.Node | None, kind: inspect.StructType, path: str, others: OtherFields) -> Any:
        if node is not None:
            self._places[path] = place_of(node)
        fields = {field.encode_name: field for field in kind.fields}
        if node is None or _is_null(node):
            pairs: list[tuple[str, yaml.Node, yaml.Node]] | Bad = []
        else:
            pairs = self._pairs(node, path, f"a mapping with {_some(fields)}" if fields else "an empty mapping")
        if isinstance(pairs, Bad):
            return BAD
        values: dict[str, Any] = {}
        wrong = False
        for name, key, value in pairs:
            inner = _join(path, name)
            if name not in fields:
                self._places[inner] = place_of(key)
                if name in others.unused:
                    self.warn(inner, f"accepted but not used: {others.unused[name]}")
                    continue
                if name not in others.renamed:
                    wrong = True
                    if name in others.refused:
                        self.problem(inner, f"known but not supported yet; {others.refused[name]}")
                    else:
                        self.problem(inner, f"unknown field. {alternatives(name, fields)}")
                    continue
                self.warn(inner, f"is an old name of {others.renamed[name]}; please rename it")
                name = others.renamed[name]
                if any(other == name for other, _, _ in pairs):
                    continue
            field = fields[name]
            if _is_null(value) and not field.required:
                self._places[inner] = place_of(key)
                continue
            result = self.read(value, field.type, inner)
            if result is BAD:
                wrong = True
                # Later checks must not take a wrong value for an absent one.
                if not field.required:
                    continue
            values[field.name] = result
        for field in kind.fields:
            if field.required and field.name not in values:
                self.problem(path, f"{field.encode_name} is missing")
                return BAD
        if any(value is BAD for value in values.values()):
            return BAD
        try:
            return kind.cls(**values)
        except (TypeError, ValueError) as error:
            if not wrong:
                self.problem(path, str(error))
            return BAD

    def _union(self, node: yaml.Node, kind: inspect.UnionType, path: str) -> Any:
        if _is_null(node):
            if any(isinstance(option, inspect.NoneType) for option in kind.types):
                return None
            self.problem(path, f"a value is missing; expected {wanted(kind)}")
            return BAD
        options = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
        if len(options) == 1:
            return self.read(node, options[0], path)
        for option in options:
            trial = Reader(self.source)
            value = trial.read(node, option, path)
            if not trial._problems:
                return value
        self.problem(path, f"expected {wanted(kind)}, found {_describe(node)}")
        return BAD

    def _list(self, node: yaml.Node, kind: inspect.ListType | inspect.VarTupleType, path: str) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            self.problem(path, f"expected a list, found {_describe(node)}")
            return BAD
        # Wrong elements stay as BAD, so that later checks name the right index; a file with problems is never loaded.
        values = [self.read(item, kind.item_type, f"{path}[{index}]") for index, item in enumerate(node.value)]
        if kind.min_length is not None and len(values) < kind.min_length:
            self.problem(path, f"needs at least {kind.min_length} element{'s' if kind.min_length > 1 else ''}")
        return tuple(values) if isinstance(kind, inspect.VarTupleType) else values

    def _dict(self, node: yaml.Node, kind: inspect.DictType, path: str) -> Any:
        pairs = self._pairs(node, path, "a mapping")
        if isinstance(pairs, Bad):
            return BAD
        return {name: self.read(value, kind.value_type, _join(path, name)) for name, _, value in pairs}

    def _anything(self, node: yaml.Node, path: str) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._dict(node, inspect.DictType(inspect.StrType(), inspect.AnyType()), path)
        if isinstance(node, yaml.SequenceNode):
            return self._list(node, inspect.ListType(inspect.AnyType()), path)
        return _plain(node)

    def _scalar(self, node: yaml.Node, kind: inspect.Type, path: str) -> Any:
        value = _plain(node)
        match kind:
            case inspect.BoolType():
                fits = isinstance(value, bool)
            case inspect.IntType():
                if isinstance(value, float) and value.is_integer():
                    value = int(value)
                fits = isinstance(value, int) and not isinstance(value, bool) and _in_range(value, kind)
            case inspect.FloatType():
                fits = isinstance(value, int | float) and not isinstance(value, bool)
                if fits:
                    value = float(value)
                    fits = math.isfinite(value) and _in_range(value, kind)
            case inspect.StrType():
                fits = isinstance(value, str)
                if fits and kind.min_length is not None:
                    fits = len(value) >= kind.min_length
                if fits and kind.pattern is not None:
                    fits = re.search(kind.pattern, value) is not None
            case inspect.LiteralType():
                fits = value in kind.values
            case inspect.EnumType():
                fits = value in {member.value for member in kind.cls}
                if fits:
                    value = kind.cls(value)
            case _:
                raise TypeError(f"{path}: fields of type {kind} cannot be configured")
        if fits:
            return value
        if isinstance(kind, inspect.LiteralType | inspect.EnumType) and isinstance(value, str):
            self.problem(path, f"{show(value)} is unknown. {alternatives(value, choices(kind))}")
        elif isinstance(kind, inspect.StrType) and isinstance(value, int | float):
            self.problem(path, f'expected {wanted(kind)}, found {_describe(node)}; put it in quotes: "{node.value}"')
        else:
            self.problem(path, f"expected {wanted(kind)}, found {_describe(node)}")
        return BAD


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _some(fields: Iterable[str]) -> str:
    names = list(fields)
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _plain(node: yaml.Node) -> Any:
    """The value of a scalar as YAML 1.2 and JSON read it: `1e3` is a number."""
    if not isinstance(node, yaml.ScalarNode):
        return BAD
    if node.tag == "tag:yaml.org,2002:str":
        if node.style is None and _NUMBER.fullmatch(node.value):
            return float(node.value)
        return node.value
    if node.tag in {
        "tag:yaml.org,2002:null",
        "tag:yaml.org,2002:bool",
        "tag:yaml.org,2002:int",
        "tag:yaml.org,2002:float",
    }:
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError):
            return node.value
    return node.value


def _describe(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    value = _plain(node)
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"{node.value} (true or false)"
    if isinstance(value, int | float):
        return f"the number {node.value}"
    return f"the text {show(value)}"


def _in_range(value: float, kind: inspect.IntType | inspect.FloatType) -> bool:
    return (
        (kind.ge is None or value >= kind.ge)
        and (kind.gt is None or value > kind.gt)
        and (kind.le is None or value <= kind.le)
        and (kind.lt is None or value < kind.lt)
    )


def default_of(field: msgspec.inspect.Field) -> Any:
    """A field's default value; BAD when it has none."""
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return BAD
