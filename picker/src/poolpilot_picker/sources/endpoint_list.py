"""Lists of endpoints as people write them, strictly: `ip:port,…` on a command line and `endpoints:` in a YAML file."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final, TypeVar

import yaml

from poolpilot_kube.names import ENGINE_TYPE
from poolpilot_picker.errors import ConfigurationError
from poolpilot_picker.state.endpoints import EndpointSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

MAX_FILE_BYTES: Final = 2**20

_T = TypeVar("_T")

_KEYS: Final = ("address", "port", "name", "uid", "labels", "engine")
_LIST, _MAP, _TEXT = (f"tag:yaml.org,2002:{kind}" for kind in ("seq", "map", "str"))
_PORT: Final = re.compile(r"[0-9]{1,5}")
_MOST_PROBLEMS: Final = 20
_NOT_A_NAME: Final = "host names are not resolved, because the gateway is told an address to send to"


def parse_endpoint_flag(text: str, *, engine: str = "vllm", where: str = "--endpoints") -> list[EndpointSpec]:
    """`ip:port[,ip:port…]`, IPv6 in brackets → endpoints. Raises ConfigurationError with every problem."""
    specs: list[EndpointSpec] = []
    problems: list[str] = []
    for item in (part.strip() for part in text.split(",")):
        try:
            host, port = _split_address(item, where)
            specs.append(EndpointSpec(host=_host(host, where), port=_port(port, where), engine=engine))
        except ConfigurationError as error:
            problems += error.problems
    problems += _duplicates((f"{where}: endpoint {number}", spec) for number, spec in enumerate(specs, 1))
    if problems:
        raise ConfigurationError(*_some(problems))
    return specs


def parse_endpoint_file(
    text: str, *, engines: Collection[str], default_engine: str = "vllm", where: str = "endpoints file"
) -> list[EndpointSpec]:
    """A YAML file of endpoints → the endpoints. Raises ConfigurationError with every problem, each with its line.

    The form::

        endpoints:
        - {address: 10.0.0.1, port: 8000, name: h100-a, uid: …, labels: {…}, engine: vllm}

    `address` and `port` are required; a port may be written as text, as llm-d's file-discovery has it. An empty list
    has to be written (`endpoints: []`): an empty file is more likely one that is just being written.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise ConfigurationError(f"{where}{line}: not YAML: {getattr(error, 'problem', None) or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where}: not YAML: {error}") from None
    if root is None:
        raise ConfigurationError(f"{where}: empty; `endpoints:` with a list is needed (`endpoints: []` for none)")
    return _Reader(where, engines, default_engine).read(root)


class _Reader:
    """Walks the nodes of one file and collects problems instead of stopping at the first."""

    def __init__(self, where: str, engines: Collection[str], default_engine: str) -> None:
        self._where = where
        self._engines = engines
        self._default_engine = default_engine
        self._problems: list[str] = []

    def read(self, root: yaml.Node) -> list[EndpointSpec]:
        top = self._mapping(root, "the file", ("endpoints",))
        if top is None:
            raise ConfigurationError(*self._problems)
        listed = top.get("endpoints")
        if listed is None:
            self._say(root, "`endpoints` is missing; a list of endpoints is needed (`endpoints: []` for none)")
        elif not isinstance(listed, yaml.SequenceNode) or listed.tag != _LIST:
            self._say(listed, f"endpoints is {_show(listed)}; a list is needed (`endpoints: []` for none)")
        else:
            placed = [
                (f"{self._at(node)}: endpoints[{index}]", spec)
                for index, node in enumerate(listed.value)
                if (spec := self._endpoint(node, f"endpoints[{index}]")) is not None
            ]
            self._problems += _duplicates(placed)
        if self._problems:
            raise ConfigurationError(*_some(self._problems))
        return [spec for _, spec in placed]

    def _endpoint(self, node: yaml.Node, path: str) -> EndpointSpec | None:
        before = len(self._problems)
        fields = self._mapping(node, path, _KEYS)
        if fields is None:
            return None
        for key in ("address", "port"):
            if key not in fields:
                self._say(node, f"{path}.{key} is missing")
        host = self._checked(fields.get("address"), f"{path}.address", _host)
        port = self._checked(fields.get("port"), f"{path}.port", _port)
        labels = self._labels(fields.get("labels"), f"{path}.labels")
        name = self._text(fields.get("name"), f"{path}.name")
        uid = self._text(fields.get("uid"), f"{path}.uid")
        engine = self._engine(fields.get("engine"), labels, node, path)
        if len(self._problems) > before or host is None or port is None:
            return None
        return EndpointSpec(host=host, port=port, uid=uid, labels=labels, engine=engine, name=name)

    def _engine(self, node: yaml.Node | None, labels: dict[str, str], entry: yaml.Node, path: str) -> str:
        engine, place, source = self._text(node, f"{path}.engine"), node, f"{path}.engine"
        if node is None:
            label = next((label for label in ENGINE_TYPE if label in labels), None)
            if label is None:
                return self._default_engine
            engine, place, source = labels[label], entry, f"{path}.labels[{label}]"
        if engine not in self._engines:
            allowed = ", ".join(sorted(self._engines))
            self._say(place or entry, f"{source} is {engine!r}; one of {allowed} is allowed")
        return engine

    def _labels(self, node: yaml.Node | None, path: str) -> dict[str, str]:
        if node is None:
            return {}
        fields = self._mapping(node, path, None)
        return {key: self._text(value, f"{path}[{key}]") for key, value in (fields or {}).items()}

    def _text(self, node: yaml.Node | None, path: str) -> str:
        if node is None:
            return ""
        if isinstance(node, yaml.ScalarNode) and node.tag == _TEXT:
            return str(node.value)
        self._say(node, f"{path} is {_show(node)}; text is needed (put it in quotes)")
        return ""

    def _checked(self, node: yaml.Node | None, path: str, check: Callable[[str, str], _T]) -> _T | None:
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode):
            self._say(node, f"{path} is {_show(node)}; a single value is needed")
            return None
        try:
            return check(node.value, f"{self._at(node)}: {path}")
        except ConfigurationError as error:
            self._problems += error.problems
            return None

    def _mapping(self, node: yaml.Node, path: str, allowed: Collection[str] | None) -> dict[str, yaml.Node] | None:
        if not isinstance(node, yaml.MappingNode) or node.tag != _MAP:
            self._say(node, f"{path} is {_show(node)}; a mapping is needed")
            return None
        fields: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else _show(key)
            if name in fields:
                self._say(key, f"{path} has {name!r} twice")
            elif allowed is not None and name not in allowed:
                self._say(key, f"{path} has the unknown key {name!r}; {', '.join(allowed)} are allowed")
            else:
                fields[name] = value
        return fields

    def _say(self, node: yaml.Node, problem: str) -> None:
        self._problems.append(f"{self._at(node)}: {problem}")

    def _at(self, node: yaml.Node) -> str:
        return f"{self._where}:{node.start_mark.line + 1}"


def _some(problems: list[str]) -> list[str]:
    """The first problems: a large file may hold thousands of the same."""
    kept = problems[:_MOST_PROBLEMS]
    return kept if len(kept) == len(problems) else [*kept, f"and {len(problems) - len(kept)} more problems"]


def _show(node: yaml.Node) -> str:
    if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
        return f"a {node.tag}"
    if isinstance(node, yaml.ScalarNode):
        return repr(node.value) if node.value else "empty"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _split_address(item: str, where: str) -> tuple[str, str]:
    match = re.fullmatch(r"\[([^\[\]]*)\]:([^:]*)", item) or re.fullmatch(r"([^:\[\]]*):([^:]*)", item)
    if match is None:
        hint = "; an IPv6 address needs brackets, as in [fd00::1]:8000" if item.count(":") > 1 else ""
        raise ConfigurationError(f"{where}: {item!r} is not ip:port{hint}")
    return match[1], match[2]


def _host(text: str, where: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ConfigurationError(f"{where}: {text!r} is not an IP address; {_NOT_A_NAME}") from None
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise ConfigurationError(f"{where}: {text!r} has a zone; an address that holds on every host is needed")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_unspecified or address.is_multicast:
        raise ConfigurationError(f"{where}: {text!r} is not the address of one host")
    return str(address)


def _port(text: str, where: str) -> int:
    if not _PORT.fullmatch(text) or not 1 <= int(text) <= 65535:
        raise ConfigurationError(f"{where}: {text!r} is not a port; 1 to 65535 is allowed")
    return int(text)


def _duplicates(placed: Iterable[tuple[str, EndpointSpec]]) -> list[str]:
    """Two endpoints with the same address, or the same identity, cannot be told apart."""
    problems: list[str] = []
    addresses: dict[str, str] = {}
    keys: dict[tuple[str, int], str] = {}
    for place, spec in placed:
        first = addresses.setdefault(spec.address, place)
        if first != place:
            problems.append(f"{place} is {spec.address} again, first at {first}")
            continue
        first = keys.setdefault(spec.key, place)
        if first != place:
            problems.append(f"{place} has uid {spec.uid!r} and port {spec.port} again, first at {first}")
    return problems
