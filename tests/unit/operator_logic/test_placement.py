"""Where adapters go: never more than there is room for, never moved without a reason."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poolpilot_operator.lora.placement import Place, Plan, Site, Wish, planned

A, B, C = (Place(uid, 8000) for uid in "abc")
BASE = frozenset({"base"})


def site(place: Place, slots: int | None = 2, foreign: int = 0, models: frozenset[str] = BASE) -> Site:
    return Site(place, models, slots, foreign)


def test_five_adapters_on_three_endpoints_with_two_slots() -> None:
    wishes = [Wish(f"l{n}", 1, since=str(n)) for n in range(5)]
    plan = planned([site(A), site(B), site(C)], wishes, {})
    assert all(len(places) == 1 for places in plan.places.values())
    counts = [sum(place in places for places in plan.places.values()) for place in (A, B, C)]
    assert sorted(counts) == [1, 2, 2]


def test_what_is_placed_stays_and_the_rest_goes_where_demand_is_least() -> None:
    wishes = [Wish("hot", 1, demand=9.0), Wish("old", 1, demand=1.0), Wish("new", 1)]
    plan = planned([site(A), site(B)], wishes, {"hot": [A], "old": [B]})
    assert plan.places == {"hot": (A,), "old": (B,), "new": (B,)}


def test_all_endpoints_are_wanted_where_no_number_is_given_and_room_is_said() -> None:
    plan = planned([site(A), site(B, 0), site(C, None)], [Wish("x")], {})
    assert plan == Plan({"x": (A, C)}, {"x": 3})


def test_only_endpoints_of_the_base_model() -> None:
    plan = planned([site(A), site(B, models=frozenset({"other"}))], [Wish("x", base_model="other")], {})
    assert plan.places == {"x": (B,)}
    # One that cannot be asked keeps what it has.
    assert planned([Site(A, None)], [Wish("x", base_model="other")], {"x": [A]}).places == {"x": (A,)}


def test_a_pinned_adapter_displaces_the_least_wanted_one_and_never_another_pinned_one() -> None:
    wishes = [Wish("a", 1, demand=2.0), Wish("b", 1, demand=1.0), Wish("p", 1, pinned=True)]
    plan = planned([site(A)], wishes, {"a": [A], "b": [A]})
    assert plan.places == {"a": (A,), "b": (), "p": (A,)}
    wishes = [Wish("p", 1, pinned=True), Wish("q", 1, pinned=True, demand=99.0)]
    assert planned([site(A, 1)], wishes, {"p": [A]}).places == {"p": (A,), "q": ()}


def test_much_more_demand_displaces_a_little_more_does_not() -> None:
    def winner(demand: float) -> str:
        wishes = [Wish("old", 1, demand=1.0), Wish("new", 1, demand=demand)]
        plan = planned([site(A, 1)], wishes, {"old": [A]})
        [name] = [name for name, places in plan.places.items() if places]
        return name

    assert winner(3.9) == "old"
    assert winner(4.0) == "new"


def test_what_others_loaded_takes_room_once_and_counts_as_placed() -> None:
    one = site(A, 2, 1, frozenset({"base", "given"}))
    plan = planned([one], [Wish("given", 1), Wish("mine", 1)], {})
    assert plan.places == {"given": (A,), "mine": (A,)}


PLACES = st.sampled_from([A, B, C])
WISHES = st.lists(
    st.builds(
        Wish,
        st.sampled_from("uvwxyz"),
        st.none() | st.integers(1, 3),
        st.booleans(),
        st.just(""),
        st.sampled_from([0.0, 1.0, 2.0, 9.0]),
        st.sampled_from("12"),
    ),
    unique_by=lambda wish: wish.name,
    max_size=6,
)


@given(
    st.lists(st.tuples(PLACES, st.none() | st.integers(0, 3)), unique_by=lambda one: one[0]),
    WISHES,
    st.dictionaries(st.sampled_from("uvwxyz"), st.frozensets(PLACES)),
)
def test_a_plan_fits_and_stays(
    rooms: list[tuple[Place, int | None]], wishes: list[Wish], now: dict[str, frozenset[Place]]
) -> None:
    sites = [site(place, slots) for place, slots in rooms]
    plan = planned(sites, wishes, now)
    for place, slots in rooms:
        assert slots is None or sum(place in places for places in plan.places.values()) <= slots
    for wish in wishes:
        places = plan.places[wish.name]
        assert len(set(places)) == len(places) <= plan.wanted[wish.name]
        assert set(places) <= {place for place, _ in rooms}
    # What was decided is decided again: nothing moves for ever.
    assert planned(sites, wishes, plan.places) == plan
    # Room is never left empty while somebody wants it.
    for wish in wishes:
        if len(plan.places[wish.name]) < plan.wanted[wish.name]:
            for place, slots in rooms:
                if place not in plan.places[wish.name]:
                    assert slots is not None
                    assert sum(place in places for places in plan.places.values()) == slots
