"""Fields of our objects that somebody else sets otherwise again and again: set back less and less often, and told.

A field that differs is set back at once. Where the same wish finds it different again soon after, that is counted, and
from the third time on it is left as it is for a while that doubles. Each field counts for itself: where another one
differs too, the object is written at once. An object that is deleted as often as it is made counts as the field of no
name. What the cluster's admission makes of a write is left longest, and logged only.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from poolpilot_kube.names import FIELD_MANAGER, MANAGED_BY_LABEL
from poolpilot_operator.difference import Path, path_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from poolpilot_kube.objects import Key

log: Final = logging.getLogger(__name__)

CONDITION: Final = "Contested"
REASON: Final = "ChangedByOthers"
CALM_S: Final = 600.0
"""What stays as wanted so long is no longer disputed."""
_FREE: Final = 2
"""So often a field is set back at once."""
_FIRST_S: Final = 1.0
_MOST_S: Final = 600.0
"""So long a field, and what admission makes of a write, is left at most."""
_MOST_NAMED: Final = 5

Place: TypeAlias = tuple[str, "Key"]
"""(kind, (namespace, name))."""
OBJECT: Final[Path] = ()
"""The whole object: it was gone."""


class _Record(msgspec.Struct):
    """Of an object that was written."""

    wish: str
    wrote_s: float
    counts: dict[Path, int] = {}
    """How often a field was set."""
    admitted: str = ""
    """Digest of what admission made of the wish; empty where it came as wanted."""
    left: frozenset[Path] = frozenset()
    """What it changed."""
    until_s: float | None = None
    """So long it is left as it is; None where it was not seen to differ since it was written."""
    fields: tuple[Path, ...] = ()
    """What is told of."""
    managers: tuple[str, ...] = ()
    looked: bool = False
    """Whether it was asked, since it was written, who sets it otherwise."""


class Disputes:
    """For all objects. Times in seconds of `clock`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: dict[Place, _Record] = {}

    def rests(self, place: Place, wish: str, different: Collection[Path], pair: Callable[[], str]) -> bool:
        """Whether what differs is left as it is for now. `wish`: digest of what is wanted; `pair`: see `wrote`."""
        record = self._records.get(place)
        if record is None:
            return False
        elapsed = self._clock() - record.wrote_s
        if record.wish != wish or (record.until_s is None and elapsed >= CALM_S):
            del self._records[place]
            return False
        # What admission changes differs always, and hastens nothing.
        reverted = [one for one in different if one not in record.left] or different
        pause = min(_pause(record.counts.get(one, 0)) for one in reverted)
        if record.admitted and record.admitted == pair():
            pause = _MOST_S
        record.until_s = record.wrote_s + pause
        return elapsed < pause

    def settled(self, place: Place) -> None:
        """It is as wanted."""
        record = self._records.get(place)
        if record is not None:
            record.until_s = None
            if self._clock() - record.wrote_s >= CALM_S:
                del self._records[place]

    def wrote(self, place: Place, wish: str, different: Iterable[Path], left: Collection[Path], pair: str) -> None:
        """`different` was written; `left` of it is not as wanted, because admission changed it.

        `pair`: digest of a wish and of what there is of it, where something is left.
        """
        now = self._clock()
        record = self._records.get(place)
        if record is None or record.wish != wish:
            self._forget_old(now)
            record = self._records[place] = _Record(wish, now)
        same = bool(left) and record.admitted == pair
        for one in different:
            # What admission makes of it every time is no dispute.
            if not (one in left and (same or not record.admitted)):
                record.counts[one] = record.counts.get(one, 0) + 1
        record.wrote_s, record.until_s, record.looked = now, None, False
        record.admitted, record.left = pair if left else "", frozenset(left)
        if left:
            what, fields = f"{place[0]} {'/'.join(place[1])}", ", ".join(path_text(one) for one in left)
            log.info("%s: the cluster changes %s as it is written; left as it is", what, fields)

    def forget(self, place: Place) -> None:
        """It was deleted by us."""
        self._records.pop(place, None)

    def unknown(self, place: Place, different: Iterable[Path]) -> bool:
        """Whether it is to be found out who sets these fields otherwise: once each time that they are left."""
        record = self._records.get(place)
        return record is not None and not record.looked and any(_pause(record.counts.get(one, 0)) for one in different)

    def learned(self, place: Place, one: dict[str, Any], different: Iterable[Path]) -> None:
        """`one`: the object as JSON, with its managed fields, while these fields are not as wanted."""
        record = self._records.get(place)
        if record is None:
            return
        record.looked = True
        fields = [path for path in different if _pause(record.counts.get(path, 0))]
        record.fields = tuple(sorted({*record.fields, *fields}, key=path_text))
        record.managers = tuple(sorted({*record.managers, *(name for path in fields for name in managers(one, path))}))

    def told(self, places: Iterable[Place]) -> list[str]:
        """What a person should know of these objects; the same words for as long as the same happens."""
        return [_text(place, record) for place in places if (record := self._records.get(place)) and record.fields]

    def again_s(self, places: Iterable[Place]) -> float | None:
        """After how many seconds something may be written again, or is no longer worth a word."""
        now = self._clock()
        waits = [
            (record.wrote_s + CALM_S if record.until_s is None else record.until_s) - now
            for place in places
            if (record := self._records.get(place)) and (record.fields or record.until_s is not None)
        ]
        return max(min(waits), 0.1) if waits else None

    def _forget_old(self, now: float) -> None:
        old = [place for place, one in self._records.items() if now - one.wrote_s >= 2 * CALM_S]
        for place in old:
            del self._records[place]


def managers(one: dict[str, Any], path: Path) -> set[str]:
    """Names of the others that own a field or something beneath it; where none does, of who wrote last of them.

    Empty where the API server knows of no other: admission, or somebody under our name.
    """
    entries = [
        entry for entry in one.get("metadata", {}).get("managedFields") or () if entry.get("manager") != FIELD_MANAGER
    ]
    owners = {entry["manager"] for entry in entries if _owns(entry.get("fieldsV1") or {}, one, path)}
    # The status is written by controllers at any time. Who took a field away does not own it.
    writers = [entry for entry in entries if entry.get("subresource") != "status"]
    if owners or not writers:
        return owners
    return {max(writers, key=lambda entry: entry.get("time") or "")["manager"]}


def _owns(fields: dict[str, Any], value: Any, path: Path) -> bool:
    if not path:
        return True
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        found = fields.get(f"f:{step}")
        inner = value.get(step) if isinstance(value, dict) else None
        # A leaf is owned as a whole.
        return found is not None and (not found or _owns(found, inner, rest))
    item = value[step] if isinstance(value, list) and step < len(value) else None
    return any(_names(name, item, step) and (not found or _owns(found, item, rest)) for name, found in fields.items())


def _names(name: str, item: Any, index: int) -> bool:
    """Whether a key of managed fields, such as `k:{"name":"picker"}`, is that of a list's item."""
    kind, _, text = name.partition(":")
    if kind == "i":
        return text == str(index)
    if kind == "v":
        return bool(msgspec.json.decode(text) == item)
    if kind == "k" and isinstance(item, dict):
        return all(item.get(key) == value for key, value in msgspec.json.decode(text).items())
    return False


def _pause(count: int) -> float:
    return 0.0 if count <= _FREE else min(_FIRST_S * 2.0 ** min(count - _FREE - 1, 30), _MOST_S)


def _text(place: Place, record: _Record) -> str:
    what = f"{place[0]} {'/'.join(part for part in place[1] if part)}"
    if record.fields == (OBJECT,):
        return (
            f"{what} is deleted, or loses its label {MANAGED_BY_LABEL}, each time that it is made: that is done less "
            "and less often, every 10 minutes in the end"
        )
    named = [path_text(one) for one in record.fields if one != OBJECT]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    who = (
        f"field manager {', '.join(record.managers)}"
        if record.managers
        else "somebody of whom its managed fields say nothing"
    )
    return (
        f"{what}: {', '.join(named[:_MOST_NAMED])}{more} is set otherwise by {who} each time that it is set back; "
        "that is done less and less often, every 10 minutes in the end: one of the two has to leave it alone"
    )
