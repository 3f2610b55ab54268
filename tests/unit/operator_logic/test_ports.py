"""Ports of pools: unique for a Picker, sticky, the same in every process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolpilot_kube.names import POOL_PORTS
from poolpilot_operator.ports import NoPortError, Ports

PICKER = ("home", "default")


def test_a_pool_keeps_its_port_and_gets_the_same_one_in_another_process() -> None:
    first, second = Ports(), Ports()
    port = first.choose(PICKER, ("team", "llama"))
    assert port in POOL_PORTS
    assert first.choose(PICKER, ("team", "llama")) == port
    assert second.choose(PICKER, ("team", "llama")) == port


def test_the_record_is_kept_whatever_the_choice_would_be() -> None:
    ports = Ports()
    ports.record(PICKER, ("team", "llama"), 29_999)
    assert ports.choose(PICKER, ("team", "llama")) == 29_999


@pytest.mark.parametrize("port", [0, 80, 19_999, 30_000])
def test_a_record_that_no_picker_could_listen_on_is_replaced(port: int) -> None:
    ports = Ports()
    ports.record(PICKER, ("team", "llama"), port)
    assert ports.choose(PICKER, ("team", "llama")) in POOL_PORTS


def test_who_is_on_a_port_keeps_it_whatever_another_service_says_later() -> None:
    ports = Ports()
    ports.record(PICKER, ("team", "b"), 20_500, listed=True)
    ports.record(PICKER, ("team", "a"), 20_501, listed=True)
    ports.record(PICKER, ("team", "a"), 20_500)
    ports.record(PICKER, ("team", "b"), 20_500)
    assert ports.choose(PICKER, ("team", "b")) == 20_500
    other = ports.choose(PICKER, ("team", "a"))
    assert other != 20_500
    assert ports.choose(PICKER, ("team", "b")) == 20_500
    assert ports.choose(PICKER, ("team", "a")) == other


def test_of_two_pools_that_begin_with_one_port_the_one_that_would_have_chosen_it_keeps_it() -> None:
    own = Ports().choose(PICKER, ("team", "b"))
    for pools in (["a", "b"], ["b", "a"]):
        ports = Ports()
        for pool in pools:
            ports.record(PICKER, ("team", pool), own, listed=True)
        assert ports.choose(PICKER, ("team", "b")) == own
        assert ports.choose(PICKER, ("team", "a")) != own


def test_two_pickers_may_use_the_same_port() -> None:
    ports = Ports()
    ports.record(PICKER, ("team", "a"), 20_500)
    ports.record(("home", "other"), ("team", "b"), 20_500)
    assert ports.choose(("home", "other"), ("team", "b")) == 20_500


def test_a_late_word_of_an_old_service_does_not_free_the_new_port() -> None:
    ports = Ports()
    ports.record(PICKER, ("team", "a"), 20_500)
    ports.record(PICKER, ("team", "a"), 20_501)
    ports.forget(PICKER, ("team", "a"), 20_500)
    assert ports.choose(PICKER, ("team", "a")) == 20_501
    ports.forget(PICKER, ("team", "a"), 20_501)
    assert ports.choose(PICKER, ("team", "b")) in POOL_PORTS


@given(st.sets(st.tuples(st.sampled_from("xyz"), st.text("abcdefgh", min_size=1, max_size=6)), max_size=60))
def test_no_two_pools_have_one_port(pools: set[tuple[str, str]]) -> None:
    ports = Ports()
    chosen = [ports.choose(PICKER, pool) for pool in sorted(pools)]
    assert len(set(chosen)) == len(pools)
    assert [ports.choose(PICKER, pool) for pool in sorted(pools)] == chosen


def test_the_last_port_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = Ports()
    for number in POOL_PORTS:
        ports.record(PICKER, ("team", f"pool-{number}"), number)
    with pytest.raises(NoPortError, match="home/default"):
        ports.choose(PICKER, ("team", "one-more"))
