"""What others set otherwise again and again: how long it is left, what is told of it, and when that ends."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from poolpilot_operator.disputes import CALM_S, OBJECT, Disputes, managers

PLACE = ("Deployment", ("home", "poolpilot-default"))
REPLICAS, IMAGE = ("spec", "replicas"), ("spec", "template", "spec", "containers", 0, "image")


class Stage:
    """One object, an hour of which may pass in no time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.disputes = Disputes(lambda: self.now)
        self.writes = 0

    def differs(self, *different: Any, wish: str = "a", admitted: str = "") -> bool:
        """Whether it was written at a look that finds these fields different."""
        if self.disputes.rests(PLACE, wish, different, lambda: admitted):
            if self.disputes.unknown(PLACE, different):
                self.disputes.learned(PLACE, MANAGED, different)
            return False
        self.disputes.wrote(PLACE, wish, different, different if admitted else (), admitted)
        self.writes += 1
        return True


FIELDS = {"f:spec": {"f:replicas": {}}}
MANAGED: dict[str, Any] = {
    "metadata": {
        "managedFields": [
            {"manager": "poolpilot-operator", "operation": "Apply", "time": "2026-01-03T00:00:00Z", "fieldsV1": FIELDS},
            {"manager": "scaler", "operation": "Update", "subresource": "scale", "fieldsV1": FIELDS},
        ]
    },
    "spec": {"replicas": 9},
}


def test_who_reverts_at_once_is_written_against_less_and_less_often() -> None:
    stage = Stage()
    at = []
    for _ in range(36_000):
        if stage.differs(REPLICAS):
            at.append(stage.now)
        stage.now += 0.1
    gaps = [round(later - one) for one, later in pairwise(at)]
    assert gaps[:13] == [0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600]
    assert set(gaps[13:]) == {600}


def test_a_field_that_nobody_reverts_is_not_told_and_another_one_is_written_at_once() -> None:
    stage = Stage()
    for _ in range(2):
        assert stage.differs(REPLICAS)
    assert stage.disputes.again_s([PLACE]) is None
    while stage.differs(REPLICAS):
        pass
    assert not stage.differs(REPLICAS)
    assert stage.differs(REPLICAS, IMAGE)
    [told] = stage.disputes.told([PLACE])
    assert told.startswith("Deployment home/poolpilot-default: spec.replicas is set otherwise by field manager scaler ")
    # Of a wish that is another, nothing has been reverted.
    while stage.differs(REPLICAS):
        pass
    assert stage.differs(REPLICAS, wish="b")
    assert stage.disputes.told([PLACE]) == []


def test_it_is_over_when_the_object_stays_as_wanted() -> None:
    stage = Stage()
    while stage.differs(REPLICAS):
        pass
    assert stage.disputes.again_s([PLACE]) == pytest.approx(1.0)
    stage.now += 1.0
    assert stage.differs(REPLICAS)
    stage.disputes.settled(PLACE)
    assert stage.disputes.told([PLACE])
    assert stage.disputes.again_s([PLACE]) == pytest.approx(CALM_S)
    stage.now += CALM_S
    stage.disputes.settled(PLACE)
    assert (stage.disputes.told([PLACE]), stage.disputes.again_s([PLACE])) == ([], None)
    # What is seen that late is another story, also without a look between.
    while stage.differs(REPLICAS):
        pass
    stage.now += 1.0
    stage.differs(REPLICAS)
    stage.now += CALM_S
    assert [stage.differs(REPLICAS) for _ in range(4)] == [True, True, True, False]


def test_what_admission_makes_of_a_write_is_left_for_ten_minutes_and_told_to_nobody() -> None:
    stage = Stage()
    for _ in range(8):
        assert stage.differs(REPLICAS, admitted="the same")
        stage.now += 1.0
        assert not stage.differs(REPLICAS, admitted="the same")
        assert stage.disputes.again_s([PLACE]) == pytest.approx(599.0)
        stage.now += 599.0
    assert stage.disputes.told([PLACE]) == []
    # Something else every time, such as the hour: no two answers are the same.
    wrote = stage.writes
    for number in range(1000):
        stage.differs(REPLICAS, admitted=str(number))
        stage.now += 0.1
    assert stage.writes - wrote < 12


def test_who_reverts_an_object_that_admission_changes_too() -> None:
    stage = Stage()
    for _ in range(1000):
        if not stage.disputes.rests(PLACE, "a", [IMAGE, REPLICAS], lambda: "reverted"):
            stage.disputes.wrote(PLACE, "a", [IMAGE, REPLICAS], [IMAGE], "as admitted")
            stage.writes += 1
        stage.now += 0.1
    assert stage.writes < 12
    assert not stage.differs(IMAGE, admitted="as admitted")


def test_an_object_that_is_deleted_as_often_as_it_is_made() -> None:
    stage = Stage()
    assert [stage.differs(OBJECT) for _ in range(4)] == [True, True, True, False]
    stage.disputes.learned(PLACE, {}, [OBJECT])
    assert stage.disputes.told([PLACE])[0].startswith("Deployment home/poolpilot-default is deleted, or ")
    stage.disputes.forget(PLACE)
    assert stage.differs(OBJECT)


def entry(manager: str, fields: Any, time: str = "2026-01-01T00:00:00Z", **more: Any) -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "time": time, "fieldsV1": fields, **more}


CONTAINER = 'k:{"name":"picker"}'


@pytest.mark.parametrize(
    ("path", "entries", "found"),
    [
        (
            IMAGE,
            [entry("a", {"f:spec": {"f:template": {"f:spec": {"f:containers": {CONTAINER: {"f:image": {}}}}}}})],
            "a",
        ),
        # Another item of the list, and the item itself without the field.
        (
            IMAGE,
            [
                entry("a", {"f:spec": {"f:template": {"f:spec": {"f:containers": {CONTAINER: {"f:image": {}}}}}}}),
                entry(
                    "b", {"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"x"}': {"f:image": {}}}}}}}
                ),
                entry("c", {"f:spec": {"f:template": {"f:spec": {"f:containers": {CONTAINER: {".": {}}}}}}}),
            ],
            "a",
        ),
        (IMAGE[:-2], [entry("a", {"f:spec": {"f:template": {"f:spec": {"f:containers": {CONTAINER: {}}}}}})], "a"),
        (("spec", "ports", 0, "port"), [entry("a", {"f:spec": {"f:ports": {}}})], "a"),
        (
            ("spec", "names", 1),
            [entry("a", {"f:spec": {"f:names": {'v:"y"': {}}}}), entry("b", {"f:spec": {"f:x": {}}})],
            "a",
        ),
        (("metadata", "labels", "a.b/c"), [entry("a", {"f:metadata": {"f:labels": {"f:a.b/c": {}}}})], "a"),
        # Nobody owns what was taken away: the last one to write did it.
        (
            ("metadata", "labels", "a"),
            [
                entry("a", {"f:spec": {}}, "2026-01-02T00:00:00Z"),
                entry("b", {"f:spec": {}}, "2026-01-03T00:00:00Z"),
                entry("c", {"f:status": {}}, "2026-01-04T00:00:00Z", subresource="status"),
            ],
            "b",
        ),
        (("spec", "replicas"), [entry("poolpilot-operator", FIELDS)], ""),
        (("spec", "replicas"), [], ""),
    ],
)
def test_who_owns_a_field(path: Any, entries: list[Any], found: str) -> None:
    spec = {
        "template": {"spec": {"containers": [{"name": "picker", "image": "x"}]}},
        "ports": [{"port": 1}],
        "names": ["x", "y"],
    }
    one = {"metadata": {"managedFields": entries}, "spec": spec}
    assert managers(one, path) == ({found} if found else set())
