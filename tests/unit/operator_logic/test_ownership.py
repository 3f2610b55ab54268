"""Which Picker serves which pool."""

from __future__ import annotations

from typing import Any

from poolpilot_kube.objects import (
    EndpointPickerRef,
    InferencePool,
    InferencePoolSpec,
    Key,
    ObjectMeta,
    PoolSelector,
    TargetPort,
)
from poolpilot_operator.models import Picker, PickerSpec, PoolsSpec
from poolpilot_operator.ownership import Claim, Home, claim, served_namespaces, too_far

HOME = Home("home")


def pool(namespace: str = "team", picker: str | None = "default") -> InferencePool:
    labels = {} if picker is None else {"poolpilot.dev/picker": picker}
    spec = InferencePoolSpec(PoolSelector({"app": "x"}), (TargetPort(8000),), "http", EndpointPickerRef("x"))
    return InferencePool(ObjectMeta(name="llama", namespace=namespace, labels=labels), spec)


def pickers(*wanted: tuple[str, str], **spec: Any) -> dict[Key, Picker]:
    return {
        key: Picker(ObjectMeta(name=key[1], namespace=key[0], creation_timestamp=f"2026-01-0{day}"), PickerSpec(**spec))
        for day, key in enumerate(wanted, start=1)
    }


def test_a_pool_that_does_not_ask_is_not_served() -> None:
    assert claim(pool(picker=None), pickers(("home", "default")), None, HOME) == Claim()


def test_a_label_without_a_value_asks_for_the_default_picker() -> None:
    assert claim(pool(picker=""), pickers(("home", "default")), None, HOME).picker == ("home", "default")


def test_a_picker_that_is_not_there_is_told() -> None:
    found = claim(pool(picker="other"), pickers(("home", "default")), None, HOME)
    assert (found.picker, found.problem) == (None, "PickerNotFound")
    assert (
        found.message
        == "label poolpilot.dev/picker is 'other', but there is no Picker of that name in namespace home or team"
    )


def test_a_picker_of_another_namespace_than_the_operators_serves_only_its_own() -> None:
    found = claim(pool("team"), pickers(("elsewhere", "default")), None, HOME)
    assert found.picker is None
    assert claim(pool("elsewhere"), pickers(("elsewhere", "default")), None, HOME).picker == ("elsewhere", "default")


def test_the_nearest_picker_takes_a_new_pool_and_the_other_is_named() -> None:
    both = pickers(("home", "default"), ("team", "default"))
    assert claim(pool(), both, None, HOME) == Claim(("team", "default"), (("home", "default"),))


def test_who_serves_goes_on_serving() -> None:
    both = pickers(("home", "default"), ("team", "default"))
    assert claim(pool(), both, ("home", "default"), HOME).picker == ("home", "default")


def test_who_may_no_longer_serve_does_not() -> None:
    both = pickers(("home", "default"), ("team", "default"))
    both["home", "default"] = Picker(
        both["home", "default"].metadata, PickerSpec(pools=PoolsSpec(namespaces=("other",)))
    )
    assert claim(pool(), both, ("home", "default"), HOME) == Claim(("team", "default"))


def test_all_pools_of_named_namespaces_but_those_that_ask_for_another() -> None:
    spec = PoolsSpec("All", ("team",))
    takers = pickers(("home", "taker"), pools=spec) | pickers(("home", "default"))
    assert claim(pool(picker=None), takers, None, HOME).picker == ("home", "taker")
    assert claim(pool(picker="default"), takers, None, HOME).picker == ("home", "default")
    assert claim(pool("other", picker=None), takers, None, HOME) == Claim()


def test_a_namespace_that_the_operator_does_not_watch_is_not_served() -> None:
    home = Home("home", ("home", "team"))
    assert claim(pool("team"), pickers(("home", "default")), None, home).picker == ("home", "default")
    assert claim(pool("other"), pickers(("home", "default")), None, home).picker is None


def test_where_a_picker_serves() -> None:
    [here] = pickers(("home", "default")).values()
    [there] = pickers(("team", "default")).values()
    [named] = pickers(("home", "default"), pools=PoolsSpec(namespaces=("b", "a"))).values()
    assert served_namespaces(here, HOME) == ()
    assert served_namespaces(here, Home("home", ("z", "home"))) == ("home", "z")
    assert served_namespaces(there, HOME) == ("team",)
    assert served_namespaces(named, HOME) == ("a", "b")
    assert too_far(named, HOME) == ()
    assert too_far(named, Home("home", ("home", "a"))) == ("b",)
    [far] = pickers(("team", "default"), pools=PoolsSpec(namespaces=("team", "b"))).values()
    assert too_far(far, HOME) == ("b",)


def test_a_picker_of_another_operator_is_none_of_ours_and_no_reason_to_complain() -> None:
    [theirs] = pickers(("home", "default")).values()
    meta = ObjectMeta(name="default", namespace="home", labels={"poolpilot.dev/operator": "other"})
    labelled = {("home", "default"): Picker(meta, theirs.spec)}
    assert claim(pool(), labelled, None, HOME) == Claim()
    assert claim(pool(), labelled, None, Home("other")).problem == "PickerNotFound"
    near = {**labelled, **pickers(("team", "default"))}
    assert claim(pool(), near, None, HOME).picker == ("team", "default")
