"""Conditions, certificates, names and statuses: what they say and when they change."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_kube.objects import Key, ObjectMeta
from poolpilot_operator import certificates
from poolpilot_operator.conditions import holds, merged
from poolpilot_operator.lora.record import record_name
from poolpilot_operator.models import Owned, OwnedMeta, Picker, PickerSpec
from poolpilot_operator.picker_status import MOST_NAMED, Outcome, Problem, status
from poolpilot_operator.resources.naming import base_name, shortened
from poolpilot_operator.world import PoolState

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PICKER = Picker(ObjectMeta(name="default", namespace="home", generation=7), PickerSpec())


def test_the_time_of_a_condition_moves_with_its_status_only() -> None:
    first = merged([], [holds("Ready", True, "Ready", "a")], 1, NOW)
    assert first[0]["lastTransitionTime"] == "2026-03-01T12:00:00Z"
    later = NOW + timedelta(hours=1)
    same = merged(first, [holds("Ready", True, "Other", "b")], 2, later)
    assert same[0]["lastTransitionTime"] == "2026-03-01T12:00:00Z"
    assert (same[0]["reason"], same[0]["message"], same[0]["observedGeneration"]) == ("Other", "b", 2)
    other = merged(same, [holds("Ready", False, "Other", "b")], 2, later)
    assert other[0]["lastTransitionTime"] == "2026-03-01T13:00:00Z"


def test_a_certificate_is_good_until_a_month_before_its_end() -> None:
    names = certificates.names("poolpilot-default", "home")
    data = certificates.made(names, NOW)
    assert certificates.good(data, names, NOW)
    assert certificates.good(data, names, NOW + timedelta(days=59))
    assert not certificates.good(data, names, NOW + timedelta(days=61))
    assert not certificates.good(data, [*names, "another"], NOW)
    assert not certificates.good({}, names, NOW)
    assert not certificates.good({**data, "tls.crt": base64.b64encode(b"no PEM").decode()}, names, NOW)
    assert not certificates.good({**data, "tls.key": base64.b64encode(b"no PEM").decode()}, names, NOW)


@pytest.mark.parametrize("length", [1, 41, 42, 43, 63])
def test_names_stay_short_and_apart(length: int) -> None:
    name = base_name(("home", "n" * length), "home")
    assert len(name) <= 52
    assert name != base_name(("home", "n" * (length - 1) + "m"), "home")
    assert name != base_name(("home", "n" * length), "team")
    assert shortened("a" * 60) == shortened("a" * 60)
    assert not shortened("a" * 42 + "-" * 20).endswith("-")


@given(st.text("ab-.", min_size=1, max_size=70), st.text("ab-.", min_size=1, max_size=260))
def test_the_record_of_a_pools_adapters_is_no_object_of_any_picker(picker: str, pool: str) -> None:
    """Whatever both are called, and whichever namespace the Picker is in."""
    for namespace in ("home", "adapters"):
        assert record_name(pool) != base_name((namespace, picker), "home")
        assert record_name(f"adapters-{picker}") != base_name((namespace, f"adapters-{picker}"), "home")
    assert len(record_name(pool)) <= 253


def deployed(**said: Any) -> Owned:
    return Owned(OwnedMeta(name="poolpilot-default", namespace="home"), status=said)


def conditions(outcome: Outcome, states: dict[Key, PoolState] | None = None, picker: Picker = PICKER) -> dict[str, Any]:
    found = status(picker, outcome, states or {}, NOW)
    return {one["type"]: (one["status"], one["reason"]) for one in found["conditions"]}


def test_what_a_pickers_status_says() -> None:
    ready = Outcome(deployments=(deployed(replicas=2, readyReplicas=2),))
    assert conditions(ready) == {
        "Accepted": ("True", "Accepted"),
        "Programmed": ("True", "Programmed"),
        "Ready": ("True", "Ready"),
        "StateShared": ("False", "SeveralPickers"),
        "ConfigurationTaken": ("True", "Taken"),
    }
    refused = Outcome(refused=Problem("ImageMissing", "x"))
    assert conditions(refused)["Ready"] == ("False", "ImageMissing")
    missing = Outcome(missing=(Problem("SecretMissing", "x"), Problem("NotOurs", "y")), deployments=(deployed(),))
    assert conditions(missing)["Programmed"] == ("False", "SecretMissing")
    assert conditions(Outcome(deployments=(deployed(replicas=1),)))["Ready"] == ("False", "NoPodReady")
    assert conditions(Outcome())["Ready"] == ("False", "NoPods")
    spread = Picker(PICKER.metadata, PickerSpec(placement="PerNamespace"))
    assert conditions(Outcome(), picker=spread)["Ready"] == ("True", "NoPools")
    none = Picker(PICKER.metadata, PickerSpec(replicas=0))
    assert conditions(Outcome(deployments=(deployed(),)), picker=none)["Ready"] == ("False", "ScaledToZero")


def test_why_no_pod_is_ready_is_said_as_near_to_the_cause_as_it_is_known() -> None:
    """Of quota, admission or a registry; the order is that in which a Deployment's controller writes them."""
    none = {"type": "Available", "status": "False", "message": "Deployment does not have minimum availability."}
    quota = {"type": "ReplicaFailure", "status": "True", "message": "pods is forbidden: exceeded quota: team"}
    late = {"type": "Progressing", "status": "False", "message": "ReplicaSet has timed out progressing."}
    busy = {"type": "Progressing", "status": "True", "message": "ReplicaSet is progressing."}

    def said(*given: dict[str, str]) -> str:
        found = status(PICKER, Outcome(deployments=(deployed(replicas=1, conditions=list(given)),)), {}, NOW)
        return str(next(one["message"] for one in found["conditions"] if one["type"] == "Ready"))

    assert said(none, late, quota).endswith("exceeded quota: team")
    assert said(busy, none, {**quota, "status": "False"}).endswith("minimum availability.")
    assert said(none, late).endswith("timed out progressing.")
    assert said(busy).endswith("kubectl describe says more")


def test_pools_are_counted_and_not_too_many_are_named() -> None:
    states = {("team", f"p-{number:03}"): PoolState(PICKER.key, (), "NoPicker", "x" * 2000) for number in range(100)}
    states["team", "well"] = PoolState(PICKER.key)
    states["team", "lost"] = PoolState(("team", "default"), (PICKER.key,))
    states["team", "nobody"] = PoolState(None, (), "PickerNotFound", "")
    found = status(PICKER, Outcome(), states, NOW)
    assert found["pools"] == {"served": 101, "healthy": 1}
    assert len(found["unhealthyPools"]) == MOST_NAMED
    assert found["unhealthyPools"][0] == {
        "namespace": "team",
        "name": "p-000",
        "reason": "NoPicker",
        "message": "x" * 1024,
    }
    only = {key: state for key, state in states.items() if key[1] in {"well", "lost", "nobody"}}
    [lost] = status(PICKER, Outcome(), only, NOW)["unhealthyPools"]
    assert (lost["name"], lost["reason"], lost["message"]) == (
        "lost",
        "ServedByAnother",
        "Picker team/default serves it",
    )
