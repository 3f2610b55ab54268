"""What a refusal says of a definition, and what is left of a status."""

from __future__ import annotations

from datetime import UTC, datetime

from poolpilot_kube.errors import RefusedError
from poolpilot_operator.definitions import AGAIN_S, Definitions, undeclared

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HEAD = "failed to create typed patch object (home/default; poolpilot.dev/v1alpha1, Kind=Picker)"


def refused(text: str) -> RefusedError:
    return RefusedError("PATCH /apis/poolpilot.dev/v1alpha1/namespaces/home/pickers/default/status", 500, text)


ONE = refused(f"{HEAD}: .status.advice: field not declared in schema")
SEVERAL = refused(
    f"{HEAD}: errors:\n  .status.advice: field not declared in schema\n"
    '  .status.unhealthyPools[name="a.b",namespace="team"].since: field not declared in schema\n'
    "  .status.endpoints[12].zone.name: field not declared in schema"
)


def test_paths_are_read_from_the_refusal() -> None:
    assert undeclared(ONE) == {"status.advice"}
    assert undeclared(SEVERAL) == {"status.advice", "status.unhealthyPools[].since", "status.endpoints[].zone.name"}
    assert undeclared(refused("etcdserver: request timed out")) == frozenset()
    assert undeclared(refused(f"{HEAD}: .spec.image: field not declared in schema")) == frozenset()


def test_what_is_unknown_is_left_out_and_told_for_a_while() -> None:
    now = [0.0]
    known = Definitions(lambda: now[0])
    status = {
        "advice": [],
        "unhealthyPools": [{"name": "a", "since": 1}, {"name": "b"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    assert known.fitted("Picker", status, {}, 7, NOW) == status
    assert known.learn("Picker", SEVERAL) and not known.learn("Picker", ONE), "that was known"
    found = known.fitted("Picker", status, {}, 7, NOW)
    assert found["unhealthyPools"] == [{"name": "a"}, {"name": "b"}] and "advice" not in found
    ready, told = found["conditions"]
    assert ready == {"type": "Ready", "status": "True"} and status["conditions"] == [ready], (
        "the given one is untouched"
    )
    assert (told["type"], told["status"], told["observedGeneration"]) == ("CRDOutdated", "True", 7)
    assert known.fitted("LoraAdapter", status, {}, 7, NOW) == status, "another kind"
    now[0] = AGAIN_S
    assert known.fitted("Picker", status, {}, 7, NOW) == status, "the definition may have been upgraded"
    assert known.learn("Picker", ONE)
    assert known.unknown("Picker") == {"status.advice"}
