"""KV blocks: prefix hits, tail-first eviction, and a state machine against a naive model."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from poolpilot_lab.engine.model import BlockCache
from poolpilot_lab.engine.model.sequence import UNNAMED


def filled(cache: BlockCache, keys: list[int], unnamed: int = 0) -> list[int]:
    """A sequence's table of fresh blocks, the first ones named."""
    cache.allocate(len(keys) + unnamed)
    assert all(cache.name(key) for key in keys)
    return [*keys, *[UNNAMED] * unnamed]


def test_a_freed_prefix_is_found_again() -> None:
    cache = BlockCache(10)
    table = filled(cache, [1, 2, 3], unnamed=1)
    assert (cache.used, cache.free) == (4, 6)
    cache.release(table)
    assert table == []
    assert (cache.used, cache.free) == (0, 10)
    assert cache.match([1, 2, 3, 4], 10) == 3


def test_a_match_has_no_gap_and_respects_the_limit() -> None:
    cache = BlockCache(10)
    filled(cache, [1, 2, 4])
    assert cache.match([1, 2, 3, 4], 10) == 2
    assert cache.match([1, 2], 1) == 1
    assert cache.match([9, 1], 10) == 0


def test_eviction_takes_the_tail_of_a_prefix_first() -> None:
    cache = BlockCache(6)
    cache.release(filled(cache, [1, 2, 3, 4]))
    cache.allocate(2)  # the blocks never used come first
    assert cache.match([1, 2, 3, 4], 10) == 4
    cache.allocate(1)
    assert cache.match([1, 2, 3, 4], 10) == 3
    cache.allocate(2)
    assert cache.match([1, 2, 3, 4], 10) == 1
    assert cache.evictions == 3


def test_the_prefix_freed_earlier_goes_first() -> None:
    cache = BlockCache(4)
    old, new = filled(cache, [1, 2]), filled(cache, [11, 12])
    cache.release(old)
    cache.release(new)
    cache.allocate(2)
    assert cache.match([1, 2], 10) == 0
    assert cache.match([11, 12], 10) == 2


def test_a_hit_makes_a_prefix_young_again() -> None:
    cache = BlockCache(4)
    cache.release(filled(cache, [1, 2]))
    cache.release(filled(cache, [11, 12]))
    cache.release(cache.acquire([1, 2], 2))
    cache.allocate(2)
    assert cache.match([1, 2], 10) == 2
    assert cache.match([11, 12], 10) == 0


def test_shared_blocks_are_freed_with_their_last_user() -> None:
    cache = BlockCache(4)
    first = filled(cache, [1, 2])
    assert cache.unreferenced([1, 2], 2) == 0
    second = cache.acquire([1, 2], 2)
    assert cache.used == 2
    cache.release(first)
    assert cache.used == 2
    cache.release(second)
    assert (cache.used, cache.unreferenced([1, 2], 2)) == (0, 2)


def test_a_second_block_with_the_same_contents_stays_unnamed() -> None:
    cache = BlockCache(4)
    filled(cache, [1])
    cache.allocate(1)
    assert not cache.name(1)


def test_forget_empties_the_cache_of_free_blocks_only() -> None:
    cache = BlockCache(4)
    cache.release(filled(cache, [1, 2]))
    filled(cache, [3])
    cache.forget()
    assert (cache.match([1], 1), cache.match([3], 1), cache.free, cache.cached) == (0, 1, 3, 1)
    cache.allocate(3)
    assert cache.free == 0


class BlockMachine(RuleBasedStateMachine):
    """Random sequences over few keys; the model keeps every block in one list, in the order of reuse."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.total = 12
        self.cache = BlockCache(self.total)
        self.queue: list[int] = [UNNAMED] * self.total
        self.references: dict[int, int] = {}
        self.held: list[list[int]] = []

    @rule(target=tables, stem=st.integers(0, 2), length=st.integers(1, 6), unnamed=st.integers(0, 2))
    def admit(self, stem: int, length: int, unnamed: int) -> list[int]:
        """What the scheduler does for a prompt: match, acquire, allocate the rest, name it."""
        keys = [stem * 100 + position for position in range(length)]
        hits = self.cache.match(keys, length)
        assert hits == next((i for i, key in enumerate(keys) if not self._cached(key)), length)
        need = length - hits + unnamed
        if need > self.cache.free - self.cache.unreferenced(keys, hits):
            return []
        table = self.cache.acquire(keys, hits)
        for key in table:
            if key in self.references:
                self.references[key] += 1
            else:
                self.queue.remove(key)
                self.references[key] = 1
        self.cache.allocate(need)
        del self.queue[:need]
        for key in keys[hits:]:
            named = self.cache.name(key)
            assert named == (not self._cached(key))
            table.append(key if named else UNNAMED)
            if named:
                self.references[key] = 1
        table += [UNNAMED] * unnamed
        self.held.append(table)
        return table

    @rule(table=consumes(tables))
    def free(self, table: list[int]) -> None:
        """A sequence ends."""
        if not any(table is other for other in self.held):
            return
        self.held = [other for other in self.held if other is not table]
        for key in reversed(table):
            if key == UNNAMED:
                self.queue.append(key)
            elif self.references[key] > 1:
                self.references[key] -= 1
            else:
                del self.references[key]
                self.queue.append(key)
        self.cache.release(table)
        assert table == []

    def _cached(self, key: int) -> bool:
        return key in self.references or key in self.queue

    @invariant()
    def agrees(self) -> None:
        """No block is lost or counted twice."""
        assert self.cache.free == len(self.queue)
        assert self.cache.used == len({key for table in self.held for key in table if key != UNNAMED}) + sum(
            table.count(UNNAMED) for table in self.held
        )
        for key in range(300):
            assert (key in self.cache) == self._cached(key)


TestBlockMachine = BlockMachine.TestCase
TestBlockMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
