"""LoRA slots: least recently used goes, adapters of the batch stay."""

from poolpilot_lab.engine.model import AdapterSlots


def test_the_least_recently_used_adapter_is_evicted() -> None:
    slots = AdapterSlots(2)
    assert slots.use("a", {"a"})
    assert slots.use("b", {"b"})
    assert not slots.use("a", {"a"})
    assert slots.use("c", {"c"})
    assert slots.resident == ("a", "c")
    assert (slots.loads, slots.evictions) == (3, 1)


def test_an_adapter_of_the_batch_is_never_evicted() -> None:
    slots = AdapterSlots(2)
    slots.use("a", {"a"})
    slots.use("b", {"a", "b"})
    slots.use("c", {"a", "c"})
    assert slots.resident == ("a", "c")
    assert not slots.can_take("d", {"a", "c"})
    assert slots.can_take("a", {"a", "c"})
    assert slots.can_take("d", {"a"})
