from __future__ import annotations

from collections import OrderedDict

import pytest

from minitrain.errors import InputError
from minitrain.inference.cache.blocks import BlockManager, Table

TEXT = [1, 2, 3, 4, 5, 6, 7]


def computed(manager: BlockManager, tokens: list[int], adapter: str | None = None) -> Table:
    """A text that is admitted and computed in one go."""
    table, _ = manager.admit(tokens, adapter, len(tokens))
    manager.commit(table, tokens, adapter, len(tokens))
    return table


def hits(manager: BlockManager, tokens: list[int], adapter: str | None = None) -> int:
    return len(manager.match(tokens, adapter))


class HitForgets(BlockManager):
    """nano-vllm 9fa256a: a hit on a block that nobody holds resets what it was."""

    def _hold(self, block):
        if self.blocks[block].ref_count == 0 and self.blocks[block].key is not None:
            del self.found[self.blocks[block].key]
            self.blocks[block].key = None
        super()._hold(block)


def hit_again_and_again(manager: BlockManager) -> list[int]:
    found = []
    for _ in range(4):
        table, known = manager.admit(TEXT, None, 9)
        found.append(known)  # and it leaves before it has computed anything more
        manager.release(table)
    return found


def test_a_hit_does_not_use_up_what_it_found_9fa256a():
    manager, broken = BlockManager(10, 2), HitForgets(10, 2)
    for each in (manager, broken):
        each.release(computed(each, TEXT))
    assert hit_again_and_again(manager) == [6, 6, 6, 6]
    assert hit_again_and_again(broken) != [6, 6, 6, 6]


class CountsKnownBlocks(BlockManager):
    """nano-vllm f64d821: room was asked for as if nothing were known."""

    def admit(self, tokens, adapter, most):
        if self.blocks_for(len(tokens)) > len(self.free):
            return None
        return super().admit(tokens, adapter, most)


@pytest.mark.parametrize("kind, fits", [(BlockManager, True), (CountsKnownBlocks, False)])
def test_known_blocks_need_no_room_f64d821(kind, fits):
    manager = kind(num_blocks=5, block_size=2)
    computed(manager, TEXT)  # 4 of 5 blocks
    assert (manager.admit([*TEXT[:6], 9], None, 9) is not None) == fits


class Colliding(int):
    """Tokens that all have one hash."""

    def __hash__(self):
        return 1


def test_colliding_hashes_give_nobody_a_strangers_block():
    manager = BlockManager(20, 2)
    texts = [[Colliding(t) for t in (a, b, 3, 4, 5)] for a in range(3) for b in range(3)]
    tables = [computed(manager, text) for text in texts[:6]]
    for text, table in zip(texts, tables):
        assert manager.match(text, None) == table.blocks[:2]
    assert all(hits(manager, text) == 0 for text in texts[6:])


def test_a_texts_tail_is_taken_before_its_beginning():
    manager = BlockManager(num_blocks=4, block_size=2)
    manager.release(computed(manager, TEXT))  # 3 findable blocks and a half one
    for taken, left in ((1, 3), (2, 2), (3, 1), (4, 0)):
        other, _ = manager.admit([9] * (2 * taken), None, 9)
        assert hits(manager, TEXT) == left
        manager.release(other)


def test_what_was_used_last_is_taken_last():
    manager = BlockManager(num_blocks=4, block_size=2)
    texts = [[n, n, n] for n in range(2)]
    for text in texts:
        manager.release(computed(manager, text))
    manager.release(manager.admit(texts[0], None, 9)[0])  # used again
    other, _ = manager.admit([7] * 5, None, 9)
    assert [hits(manager, text) for text in texts] == [1, 0]
    manager.release(other)


def test_where_blocks_are_missing_nothing_changes():
    manager = BlockManager(num_blocks=4, block_size=2)
    computed(manager, TEXT[:4])
    free = OrderedDict(manager.free)
    assert manager.admit(list(range(20, 29)), None, 9) is None
    assert manager.admit([*TEXT[:5], 1, 1, 1, 1, 1], None, 9) is None  # 2 known, 3 missing
    assert manager.free == free and manager.used == 2 and manager.hit == 0
    table, _ = manager.admit([8], None, 9)
    assert manager.grow(table, 1, 5) is None
    assert len(table.blocks) == 1


def test_finding_and_freeing_take_no_search_through_the_pool():
    """Looked at through what a hit touches: one entry of the free list, in its middle."""

    class Counting(OrderedDict):
        looked = 0

        def __iter__(self):
            for each in super().__iter__():
                Counting.looked += 1
                yield each

    manager = BlockManager(num_blocks=5000, block_size=2)
    for n in range(1000):
        manager.release(computed(manager, [n, n, n]))
    manager.free = Counting(manager.free)
    table, found = manager.admit([500, 500, 500], None, 9)
    assert found == 2 and Counting.looked <= 2
    manager.release(table)
    assert Counting.looked <= 2


@pytest.mark.parametrize("sizes", [(0, 2), (4, 0)])
def test_an_empty_pool_is_named(sizes):
    with pytest.raises(InputError, match="whole number, 1 or more"):
        BlockManager(*sizes)
