"""Pages of several workers → one: readiness, endpoints, decisions."""

from __future__ import annotations

from typing import Any

import pytest

from poolpilot_picker.workers.merge import merged_decisions, merged_endpoints, merged_readiness


def page(*, ready: bool = True, alive: bool = True, **detail: str) -> dict[str, Any]:
    return {"ready": ready, "alive": alive, "detail": detail, "pools": {"llama": ready}}


BOTH = {0: "ready", 1: "ready"}


def test_all_well() -> None:
    merged = merged_readiness({0: page(), 1: page()}, BOTH, complete=True, draining=False)
    assert merged == {"ready": True, "alive": True, "detail": {}, "pools": {"llama": True}}


def test_not_before_all_have_been_ready_once() -> None:
    merged = merged_readiness({0: page()}, {0: "ready", 1: "starting"}, complete=False, draining=False)
    assert not merged["ready"] and merged["alive"] and merged["pools"] == {"llama": False}
    assert merged["detail"] == {
        "worker 1": "is starting",
        "starting": "not all workers have been ready yet",
    }


def test_one_that_starts_again_is_told_and_does_no_harm() -> None:
    merged = merged_readiness({1: page()}, {0: "down", 1: "ready"}, complete=True, draining=False)
    assert merged["ready"] and merged["alive"] and merged["detail"] == {"worker 0": "is down"}


@pytest.mark.parametrize("states", [BOTH, {0: "down", 1: "down"}])
def test_nobody_serves(states: dict[int, str]) -> None:
    merged = merged_readiness({}, states, complete=True, draining=False)
    assert not merged["ready"]
    assert merged["alive"] is ("ready" not in states.values()), "who is ready and says nothing hangs"


def test_a_worker_that_only_a_restart_helps() -> None:
    merged = merged_readiness({0: page(), 1: page(alive=False, faults="x")}, BOTH, complete=True, draining=False)
    assert merged["ready"] and not merged["alive"] and merged["detail"] == {"faults (worker 1)": "x"}


def test_what_all_say_is_said_once() -> None:
    told = {0: page(endpoints="none", configuration="old"), 1: page(endpoints="none", configuration="new")}
    merged = merged_readiness(told, BOTH, complete=True, draining=False)
    assert merged["detail"] == {
        "endpoints": "none",
        "configuration (worker 0)": "old",
        "configuration (worker 1)": "new",
    }


def test_draining() -> None:
    merged = merged_readiness({0: page(), 1: page()}, BOTH, complete=True, draining=True)
    assert not merged["ready"] and merged["alive"] and "draining" in merged["detail"]


def row(endpoint: str, in_flight: float, running: float | None, *, draining: bool = False) -> dict[str, Any]:
    return {"endpoint": endpoint, "draining": draining, "in_flight": in_flight, "running": running}


def test_endpoints_have_the_sum_of_what_is_in_flight() -> None:
    told = {
        1: {"pools": {"llama": [row("a", 2.0, None), row("b", 0.0, 5.0)]}},
        0: {"pools": {"llama": [row("a", 1.0, 3.0), row("a", 4.0, None, draining=True)]}},
    }
    assert merged_endpoints(told) == {
        "pools": {"llama": [row("a", 3.0, 3.0), row("a", 4.0, None, draining=True), row("b", 0.0, 5.0)]},
        "workers": [0, 1],
    }


def test_decisions_are_the_newest_of_all() -> None:
    told = {0: {"decisions": [{"at_ms": 3}, {"at_ms": 1}]}, 1: {"decisions": [{"at_ms": 2}]}}
    assert merged_decisions(told, 2) == {"decisions": [{"worker": 0, "at_ms": 3}, {"worker": 1, "at_ms": 2}]}
