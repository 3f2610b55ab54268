"""Which adapter goes to which endpoint of a pool. Pure; the same input gives the same places.

Who is placed stays placed: an adapter moves only when its endpoint goes, or when a pinned one, or one with much more
demand, needs the room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NO_LIMIT: Final = 1_000_000
MUCH_MORE: Final = 4.0
"""An adapter displaces another, unpinned one where its demand is so many times the other's."""


class Place(msgspec.Struct, frozen=True, order=True):
    """An endpoint: (UID of the pod, port)."""

    uid: str
    port: int


class Site(msgspec.Struct, frozen=True):
    """What an endpoint has room for."""

    place: Place
    models: frozenset[str] | None
    """What it answers to now; None if it could not be asked."""
    slots: int | None = None
    """Adapters that it can hold at a time; None is not known, and no limit."""
    foreign: int = 0
    """Slots taken by adapters that are not ours."""


class Wish(msgspec.Struct, frozen=True):
    """An adapter."""

    name: str
    endpoints: int | None = None
    """On how many; None is all."""
    pinned: bool = False
    base_model: str = ""
    demand: float = 0.0
    """Requests a second, of late."""
    since: str = ""
    """When it was asked for; text that sorts by age."""


class Plan(msgspec.Struct, frozen=True):
    """What came of it."""

    places: dict[str, tuple[Place, ...]]
    """By adapter."""
    wanted: dict[str, int]
    """On how many endpoints each is to be."""


def planned(sites: Sequence[Site], wishes: Iterable[Wish], now: Mapping[str, Iterable[Place]]) -> Plan:
    """`now`: where adapters are by our doing."""
    room = {
        site.place: (site.slots - site.foreign if site.slots is not None else len(sites) * 10_000) for site in sites
    }
    by_place = {site.place: site for site in sites}
    asked = sorted(wishes, key=lambda wish: (not wish.pinned, wish.since, wish.name))
    eligible = {wish.name: [site.place for site in sites if _suits(site, wish)] for wish in asked}
    wanted = {
        wish.name: len(eligible[wish.name]) if wish.endpoints is None else min(wish.endpoints, len(eligible[wish.name]))
        for wish in asked
    }
    held: dict[Place, list[Wish]] = {place: [] for place in by_place}
    places: dict[str, list[Place]] = {wish.name: [] for wish in asked}

    def there(wish: Wish, place: Place) -> bool:
        """Somebody else's doing: it takes no room that is not taken already."""
        return wish.name in (by_place[place].models or ()) and place not in set(now.get(wish.name, ()))

    def put(wish: Wish, place: Place) -> None:
        places[wish.name].append(place)
        if not there(wish, place):
            held[place].append(wish)
            room[place] -= 1

    # What is there stays, the pinned and the old first where there is no longer room for all.
    for wish in asked:
        for place in sorted(now.get(wish.name, ())):
            if place in eligible[wish.name] and len(places[wish.name]) < wanted[wish.name] and room[place] > 0:
                put(wish, place)
        for place in eligible[wish.name]:
            if there(wish, place) and len(places[wish.name]) < wanted[wish.name]:
                put(wish, place)
    for wish in sorted(asked, key=lambda one: (not one.pinned, -one.demand, one.since, one.name)):
        while len(places[wish.name]) < wanted[wish.name]:
            free = [place for place in eligible[wish.name] if place not in places[wish.name]]
            open_ = [place for place in free if room[place] > 0]
            if open_:
                put(wish, min(open_, key=lambda place: (sum(one.demand for one in held[place]), -room[place], place)))
                continue
            victims = [(victim, place) for place in free for victim in held[place] if _yields(victim, wish)]
            if not victims:
                break
            victim, place = min(victims, key=lambda one: (one[0].demand, one[0].name, one[1]))
            held[place].remove(victim)
            places[victim.name].remove(place)
            room[place] += 1
            put(wish, place)
    return Plan({name: tuple(sorted(found)) for name, found in places.items()}, wanted)


def _suits(site: Site, wish: Wish) -> bool:
    return not wish.base_model or site.models is None or wish.base_model in site.models


def _yields(victim: Wish, wish: Wish) -> bool:
    """Whether an adapter makes room for another. Never in a circle: pinned before unpinned, then by demand."""
    if victim.pinned or victim.name == wish.name:
        return False
    return wish.pinned or (wish.demand > 0 and wish.demand >= MUCH_MORE * victim.demand and victim.demand < wish.demand)
