"""What is known never goes back, in whatever order lists, events and answers come."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from poolpilot_kube.known import _MOST, Known, newer
from poolpilot_kube.objects import Object, ObjectMeta

KEY = ("team", "llama")


def an_object(version: int, uid: str = "one", *, name: str = "llama", ends: bool = False) -> Object:
    stamp = "2026-01-01T00:00:00Z" if ends else None
    return Object(ObjectMeta(name, "team", uid, str(version), deletion_timestamp=stamp))


class Word(NamedTuple):
    """Something that the server may say of an object at any time after it happened."""

    moment: int
    state: Object | None
    """As it is since then; None: gone."""
    before: Object | None


class OneObject(RuleBasedStateMachine):
    """A name at a server, and a client that hears of it late, twice, and in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.words = [Word(1, None, None)]
        """What happened to it, in order; moments of other objects are left out."""
        self.heard = 0
        """The latest moment that the client was told of."""
        self.listing: tuple[int, Object | None] | None = None
        self.known: Known[Object] = Known()
        self.uids = 0

    @property
    def state(self) -> Object | None:
        return self.words[-1].state

    def happens(self, state: Object | None, moment: int) -> None:
        self.words.append(Word(moment, state, self.state))

    def tells(self, moment: int) -> None:
        self.heard = max(self.heard, moment)

    # ---- at the server

    @rule(pause=st.integers(1, 3))
    def it_is_made_or_changed(self, pause: int) -> None:
        moment, state = self.words[-1].moment + pause, self.state
        if state is None:
            self.uids += 1
        uid = state.metadata.uid if state is not None else str(self.uids)
        ends = state is not None and state.metadata.deletion_timestamp is not None
        self.happens(an_object(moment, uid, ends=ends), moment)

    @precondition(lambda self: self.state is not None)
    @rule(lingers=st.booleans())
    def it_is_deleted(self, lingers: bool) -> None:
        moment, state = self.words[-1].moment + 1, self.state
        assert state is not None
        lingers = lingers and state.metadata.deletion_timestamp is None
        self.happens(an_object(moment, state.metadata.uid, ends=True) if lingers else None, moment)

    # ---- what the client hears

    @precondition(lambda self: self.listing is None and len(self.words) > 1)
    @rule(data=st.data())
    def an_event_comes(self, data: st.DataObject) -> None:
        word = data.draw(st.sampled_from(self.words[1:]))
        one = word.state
        if one is None:
            assert word.before is not None
            one = an_object(word.moment, word.before.metadata.uid)
        deleted = word.state is None
        if not self.known.stale(one, deleted=deleted):
            if deleted:
                self.known.drop(KEY, one.metadata.resource_version)
            else:
                self.known.put(one)
        self.tells(word.moment)

    @precondition(lambda self: any(word.state for word in self.words))
    @rule(data=st.data())
    def an_answer_to_a_write_comes(self, data: st.DataObject) -> None:
        word = data.draw(st.sampled_from([word for word in self.words if word.state is not None]))
        assert word.state is not None
        self.known.answered(word.state)
        self.tells(word.moment)

    @precondition(lambda self: any(self.deletions()))
    @rule(data=st.data())
    def an_answer_to_a_deletion_comes(self, data: st.DataObject) -> None:
        word = data.draw(st.sampled_from(self.deletions()))
        assert word.before is not None
        # Who deletes it may know an old state of it.
        uid = word.before.metadata.uid
        states = [old.state for old in self.words if old.moment < word.moment and old.state is not None]
        self.known.ended(data.draw(st.sampled_from([one for one in states if one.metadata.uid == uid])))
        self.tells(word.moment)

    def deletions(self) -> list[Word]:
        """Where it was gone, or began to be."""
        return [
            word
            for word in self.words
            if word.before is not None
            and word.before.metadata.deletion_timestamp is None
            and (word.state is None or word.state.metadata.deletion_timestamp is not None)
        ]

    @precondition(lambda self: self.listing is None)
    @rule()
    def a_list_is_asked_for(self) -> None:
        self.known.list_begins()
        self.listing = self.words[-1].moment, self.state

    @precondition(lambda self: self.listing is not None)
    @rule()
    def the_list_comes(self) -> None:
        assert self.listing is not None
        (moment, state), self.listing = self.listing, None
        self.known.listed({KEY: state} if state is not None else {}, str(moment))
        self.tells(moment)

    # ---- what must be

    @invariant()
    def it_is_known_as_it_was_at_the_latest_moment_told(self) -> None:
        state = next((word.state for word in reversed(self.words) if word.moment <= self.heard), None)
        known = self.known.objects.get(KEY)
        # What we deleted and what lingers is not known until we are told.
        lingers = state is not None and state.metadata.deletion_timestamp is not None
        assert known == state or (known is None and lingers)


TestOneObject = OneObject.TestCase
TestOneObject.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)


def listed(known: Known[Object], version: int, *found: Object) -> None:
    known.listed({one.key: one for one in found}, str(version))


def test_a_list_that_has_not_seen_an_answer_does_not_undo_it() -> None:
    known: Known[Object] = Known()
    listed(known, 5, an_object(3))
    known.list_begins()
    known.answered(an_object(7))
    known.answered(an_object(8, "new", name="new"))
    listed(known, 6, an_object(3))
    assert {name: one.metadata.resource_version for (_, name), one in known.objects.items()} == {
        "llama": "7",
        "new": "8",
    }


def test_a_list_that_has_not_seen_a_deletion_does_not_bring_the_object_back() -> None:
    known: Known[Object] = Known()
    listed(known, 5, an_object(3))
    known.list_begins()
    known.ended(an_object(3))
    # Somebody changed it in between.
    listed(known, 6, an_object(6))
    assert not known.objects
    assert known.stale(an_object(6))


def test_an_answer_that_comes_after_a_list_without_the_object_makes_no_ghost() -> None:
    known: Known[Object] = Known()
    listed(known, 9)
    assert known.answered(an_object(5)) is None
    assert not known.objects


def test_an_older_one_of_the_name_stays_gone_when_the_newer_was_deleted_during_a_list() -> None:
    known: Known[Object] = Known()
    known.list_begins()
    known.ended(an_object(7, "two"))
    listed(known, 4)
    assert known.stale(an_object(5))
    assert not known.stale(an_object(8, "three"))


def test_what_lingers_after_its_deletion_is_known_again_when_the_watch_or_a_list_tells() -> None:
    known: Known[Object] = Known()
    listed(known, 5, an_object(3))
    known.ended(an_object(3))
    assert known.stale(an_object(6))
    assert not known.stale(an_object(7, ends=True))
    known.list_begins()
    listed(known, 7, an_object(7, ends=True))
    assert known.objects[KEY].metadata.deletion_timestamp


def test_a_server_that_was_restored_from_an_old_state_is_believed() -> None:
    known: Known[Object] = Known()
    listed(known, 900, an_object(800), an_object(850, "two", name="two"))
    known.ended(an_object(850, "two", name="two"))
    known.list_begins()
    listed(known, 10, an_object(7), an_object(8, "two", name="two"))
    assert {key[1]: one.metadata.resource_version for key, one in known.objects.items()} == {"llama": "7", "two": "8"}
    assert not known.stale(an_object(11))


def test_forgotten_deletions_bring_nothing_back() -> None:
    known: Known[Object] = Known()
    for count in range(_MOST + 5):
        known.drop(("team", str(count)), str(100 + count))
    for count in range(_MOST + 5):
        assert known.stale(an_object(99 + count, "of old", name=str(count)))
    assert not known.stale(an_object(2 * _MOST + 200, name="new"))


def test_a_deletion_may_have_the_version_of_the_last_state() -> None:
    known: Known[Object] = Known()
    known.put(an_object(5))
    assert not known.stale(an_object(5), deleted=True)
    known.drop(KEY, "5")
    assert known.stale(an_object(5))


@pytest.mark.parametrize(
    ("version", "other", "after"),
    [("10", "9", True), ("9", "10", False), ("9", "9", False), ("a", "9", True), ("9", "", True), ("", "", True)],
)
def test_versions_are_compared_as_numbers(version: str, other: str, after: bool) -> None:
    assert newer(version, other) is after


def test_the_deletion_of_an_older_one_leaves_the_newer_of_its_name() -> None:
    known: Known[Object] = Known()
    known.put(an_object(9, "two"))
    assert known.ended(an_object(5)) is None
    assert known.objects[KEY].metadata.uid == "two"
