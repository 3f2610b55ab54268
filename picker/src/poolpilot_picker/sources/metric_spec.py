"""Names of a user's own metrics: `name{label=value,…}`, as core-metrics-extractor's engineConfigs write them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from poolpilot_picker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poolpilot_picker.sources.series import Series

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_PAIR: Final = re.compile(r'\s*([^\s={},"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s={},"]+))\s*')
_SYNTAX: Final = "expected name or name{label=value,…}, quotes around values optional"


class MetricSpec(msgspec.Struct, frozen=True):
    """A family and the labels its series must have."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    def matching(self, series: Sequence[Series]) -> Sequence[Series]:
        """The series with these labels."""
        if not self.labels:
            return series
        return [one for one in series if self._matches(one)]

    def _matches(self, one: Series) -> bool:
        try:
            labels = one.labels
        except ValueError:
            return False
        return all(labels.get(name) == value for name, value in self.labels)


def parse_metric_spec(text: str, *, where: str = "metric spec") -> MetricSpec:
    """`name{label=value,…}` → MetricSpec. Raises ConfigurationError, which starts with `where`."""
    spec = text.strip()
    name, brace, rest = spec.partition("{")
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{where}: {text!r} has no metric name before its labels; {_SYNTAX}")
    if not brace:
        return MetricSpec(name)
    labels: list[tuple[str, str]] = []
    at = 0
    while True:
        match = _PAIR.match(rest, at)
        if match is None:
            raise ConfigurationError(f"{where}: {text!r} has no label=value at {rest[at:]!r}; {_SYNTAX}")
        label, quoted, bare = match.groups()
        if not _LABEL_NAME.fullmatch(label):
            raise ConfigurationError(
                f"{where}: {text!r} has the label name {label!r}; letters, digits and _ are allowed"
            )
        if label in dict(labels):
            raise ConfigurationError(f"{where}: {text!r} names the label {label!r} twice")
        value = bare if quoted is None else re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[0]), quoted)
        labels.append((label, value))
        at = match.end()
        if rest[at : at + 1] == ",":
            at += 1
            continue
        if rest[at:].strip() != "}":
            raise ConfigurationError(f"{where}: {text!r} does not end with }} behind its labels; {_SYNTAX}")
        return MetricSpec(name, tuple(labels))


_ESCAPES: Final = {"n": "\n", '"': '"', "\\": "\\"}
