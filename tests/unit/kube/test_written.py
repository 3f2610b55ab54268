"""What a watcher takes from answers to writes: known at once, and not told again by the watch."""

from __future__ import annotations

from typing import Any

import msgspec

from poolpilot_kube.access import Access
from poolpilot_kube.api import KubeApi
from poolpilot_kube.objects import SERVICES, Service
from poolpilot_kube.watch import Change, Watcher

KEY = ("team", "llama")


class Followed:
    """A watcher that is told by hand."""

    def __init__(self) -> None:
        self.heard: list[Change[Service]] = []
        api = KubeApi(Access("http://127.0.0.1:1", None, lambda: None))
        self.watcher = Watcher(api, SERVICES, self.heard.extend)

    def event(self, kind: str, version: int, uid: str = "one") -> None:
        self.watcher._take([msgspec.json.encode({"type": kind, "object": service(version, uid)})])

    def wrote(self, version: int, uid: str = "one") -> None:
        self.watcher.wrote(msgspec.json.encode(service(version, uid)))

    def deleted(self, version: int, uid: str = "one") -> None:
        self.watcher.deleted(msgspec.convert(service(version, uid), Service))

    @property
    def version(self) -> str | None:
        known = self.watcher.objects.get(KEY)
        return known.metadata.resource_version if known is not None else None


def service(version: int, uid: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "team", "name": "llama", "uid": uid, "resourceVersion": str(version)}}


def test_an_answer_is_known_at_once_and_the_watch_tells_it_no_more() -> None:
    one = Followed()
    one.wrote(5)
    assert one.version == "5"
    assert [(change.old, change.new is not None) for change in one.heard] == [(None, True)]
    one.event("ADDED", 5)
    assert len(one.heard) == 1
    assert one.watcher.status.stale == 1
    one.event("MODIFIED", 6)
    assert (one.version, len(one.heard)) == ("6", 2)


def test_an_answer_that_the_watch_has_overtaken_changes_nothing() -> None:
    one = Followed()
    one.event("ADDED", 7)
    one.wrote(6)
    assert (one.version, len(one.heard)) == ("7", 1)
    one.event("DELETED", 8)
    one.wrote(7)
    assert one.version is None


def test_an_answer_does_not_move_where_the_watch_goes_on() -> None:
    one = Followed()
    one.event("ADDED", 5)
    before = one.watcher._version
    one.wrote(9)
    # Else what others did between 5 and 9 would never be told.
    assert one.watcher._version == before


def test_what_was_deleted_is_gone_at_once_and_stays_gone() -> None:
    one = Followed()
    one.event("ADDED", 5)
    one.deleted(4, "another")
    assert one.version == "5"
    one.deleted(5)
    assert one.version is None
    assert one.heard[-1].new is None
    # A late word of before brings it not back, though somebody changed it after we last heard of it; another one does.
    one.event("MODIFIED", 5)
    one.event("MODIFIED", 6)
    assert one.version is None
    one.event("DELETED", 7)
    assert len(one.heard) == 2
    one.event("ADDED", 8, "two")
    assert one.version == "8"


def test_an_answer_that_is_no_object_is_passed_over() -> None:
    one = Followed()
    one.watcher.wrote(b'{"metadata": 3}')
    assert one.version is None
    assert one.watcher.status.undecodable == 1
