"""Ownership of pages: block tables, reference counts, and prefixes that requests share.

    text A   [Once upon a ][time there wa][s a little ][dog …]      table A  7 2 5 1
    text B   [Once upon a ][time there wa][s a big bla][ck c…]      table B  7 2 0 4
                 7: 2 refs      2: 2 refs

A block is `block_size` tokens' keys and values in every layer. A full one is findable by its key
(parent, adapter, tokens): the parent is the number that the block before it was given when it
became findable, so equal tokens after another beginning, or under another adapter, are another key.
The dictionary holds the key itself and not only its hash: where two hashes collide no request gets
another one's keys and values. (vLLM stores a SHA-256 instead, which is 32 bytes for any block.)

A block that no table holds stays findable until it is needed: the free list, in the order in which
its blocks will be taken, is the LRU list too. What is not findable goes to its front; of a text
the tail is freed first, because nothing finds a tail whose beginning is gone. An OrderedDict is a
doubly linked list with a dictionary over it, so that a hit in its middle is removed in O(1).

With a sliding window a text gives back what no token of it will read any more; GONE stands in its
place, and what was findable is found as before, until it is taken for something else.

    window 5, 9 tokens in blocks of 4    0 1 2 3 | 4 5 6 7 | 8        table  GONE 2 5
                                the next token reads 5 to 8

A prefix is found where all its blocks still are, and only those in the window are held. Beginnings
are then given back before ends, so that they are the first to be forgotten.
No tensors here. Paper: Kwon et al., PagedAttention, arXiv 2309.06180, sections 4.2 to 4.5.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from minitrain.errors import InputError

Key = tuple[int, Hashable, tuple[int, ...]]  # parent's number, adapter, tokens
Copies = list[tuple[int, int]]  # blocks to copy, from and to, before anything is written
ROOT = 0  # the parent of first blocks
GONE = -1  # in the place of a block that has left the window


@dataclass
class Block:
    ref_count: int = 0
    key: Key | None = None  # None: not findable
    number: int = ROOT  # given to this content; its children's keys name it


@dataclass
class Table:
    """A text's blocks in order, of which the first `gone` are GONE; the first `committed` are
    findable, or were when they were here, and `parent` is the last one's number."""

    blocks: list[int] = field(default_factory=list)
    committed: int = 0
    parent: int = ROOT
    gone: int = 0
    findable: bool = True  # False: not all of it was here, and nothing finds what follows

    @property
    def held(self) -> int:
        return len(self.blocks) - self.gone


class BlockManager:
    """`queried` and `hit` count tokens: asked for at admission, and found; `left` counts blocks
    that have left the `window`."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        share_prefixes: bool = True,
        window: int | None = None,
    ) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if value < 1:
                raise InputError(f"{name} is {value}; it must be 1 or more")
        self.block_size, self.share_prefixes, self.window = block_size, share_prefixes, window
        self.blocks = [Block() for _ in range(num_blocks)]
        self.free = OrderedDict.fromkeys(range(num_blocks))  # in the order of taking
        self.found: dict[Key, int] = {}
        self.contents = ROOT
        self.queried = self.hit = self.left = 0

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def used(self) -> int:
        return self.num_blocks - len(self.free)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def out_of_window(self, num_tokens: int) -> int:
        """The blocks of the first `num_tokens` that no later token reads."""
        if self.window is None:
            return 0
        return max(0, num_tokens - self.window + 1) // self.block_size

    def most_blocks(self, num_tokens: int, chunk: int) -> int:
        """The most blocks that a sequence holds at once under chunked prefill."""
        whole, window = self.blocks_for(num_tokens), self.window
        return whole if window is None else min(whole, self.blocks_for(window - 1 + chunk) + 1)

    def admit(
        self, tokens: Sequence[int], adapter: Hashable, most: int, elsewhere: int = 0
    ) -> tuple[Table, int] | None:
        """Room for a text's beginning: what is known of it, and `most` tokens more at most.

        -> (table, how many tokens are computed already), or None where blocks are missing. The
        last token of `tokens` is never among the computed: its logits are what is wanted.
        `elsewhere`: so many tokens were computed elsewhere, and will be written here; what has left
        their window gets no block.
        """
        matched = self.match(tokens, adapter)
        computed = len(matched) * self.block_size
        gone = self.out_of_window(max(computed, elsewhere))
        parent = self.blocks[matched[-1]].number if matched else ROOT
        table = Table([GONE] * gone, len(matched), parent, gone, gone <= len(matched))
        for block in matched[gone:]:  # at first: what is held cannot be taken for something else
            self._take(block, table)
        if self.grow(table, computed, min(len(tokens), computed + most)) is None:
            self.release(table)
            return None
        self.queried += len(tokens)
        self.hit += computed
        return table, computed

    def match(self, tokens: Sequence[int], adapter: Hashable) -> list[int]:
        """The blocks that hold the longest known beginning, in full blocks."""
        matched: list[int] = []
        parent = ROOT
        last_full = (len(tokens) - 1) // self.block_size if self.share_prefixes else 0
        for index in range(last_full):
            block = self.found.get(self._key(parent, adapter, tokens, index))
            if block is None:
                break
            matched.append(block)
            parent = self.blocks[block].number
        return matched

    def forget(self) -> None:
        """Nothing that was written is found again: the weights that wrote it are others now."""
        self.found.clear()
        for block in self.blocks:
            block.key = None

    def grow(self, table: Table, written: int, num_tokens: int) -> Copies | None:
        """Room for `num_tokens`, of which `written` are there; None if blocks are missing, and
        then nothing has changed. A shared block that would be written to is copied first."""
        shared = written % self.block_size and written < num_tokens
        place = written // self.block_size
        copying = bool(shared) and self.blocks[table.blocks[place]].ref_count > 1
        missing = max(0, self.blocks_for(num_tokens) - len(table.blocks))
        if missing + copying > len(self.free):
            return None
        for _ in range(missing):
            self._take(self._oldest(), table)
        if not copying:
            return []
        source, own = table.blocks[place], Table()
        self._take(self._oldest(), own)
        table.blocks[place] = own.blocks[0]
        self.blocks[source].ref_count -= 1
        return [(source, own.blocks[0])]

    def commit(self, table: Table, tokens: Sequence[int], adapter: Hashable, written: int) -> None:
        """Makes the blocks findable that the first `written` tokens fill, once they are computed.

        Where another text has computed the same block in the meantime, one of the two is enough.
        """
        if not (self.share_prefixes and table.findable):
            return
        for index in range(table.committed, written // self.block_size):
            key = self._key(table.parent, adapter, tokens, index)
            twin = self.found.get(key)
            if twin is None:
                self._name(table.blocks[index], key)
            else:
                own, table.blocks[index] = table.blocks[index], twin
                self._hold(twin)
                self._drop(own)
            table.parent = self.blocks[table.blocks[index]].number
            table.committed += 1

    def slide(self, table: Table, num_tokens: int) -> None:
        """Gives back what no token after the first `num_tokens` reads, once those are computed."""
        for index in range(table.gone, self.out_of_window(num_tokens)):
            self._drop(table.blocks[index])
            table.blocks[index] = GONE
            table.gone += 1
            self.left += 1

    def fork(self, table: Table, num_tokens: int) -> Table | None:
        """A second text of the same first tokens: it holds the same blocks. None where some that
        it would read have left the first one's window."""
        if table.gone > self.out_of_window(num_tokens):
            return None
        shared = table.blocks[: self.blocks_for(num_tokens)]
        for block in shared[table.gone :]:
            self._hold(block)
        committed = min(table.committed, num_tokens // self.block_size)
        if committed == table.committed:
            return Table(shared, committed, table.parent, table.gone, table.findable)
        last = table.blocks[committed - 1] if committed else None
        parent = self.blocks[last].number if last not in (None, GONE) else ROOT
        return Table(shared, committed, parent, table.gone, table.findable and last != GONE)

    def truncate(self, table: Table, num_tokens: int) -> None:
        """Gives back the blocks behind the first `num_tokens`: those of refused drafts."""
        while len(table.blocks) > self.blocks_for(num_tokens):
            block = table.blocks.pop()
            if block != GONE:
                self._drop(block)

    def release(self, table: Table) -> None:
        """Gives all blocks back, the tail first."""
        self.truncate(table, 0)
        table.committed, table.parent, table.gone, table.findable = 0, ROOT, 0, True

    def _key(self, parent: int, adapter: Hashable, tokens: Sequence[int], index: int) -> Key:
        start = index * self.block_size
        return parent, adapter, tuple(tokens[start : start + self.block_size])

    def _oldest(self) -> int:
        """The block whose turn it is to be taken; what it held can no longer be found."""
        block = next(iter(self.free))
        if self.blocks[block].key is not None:
            del self.found[self.blocks[block].key]
            self.blocks[block].key = None
        return block

    def _name(self, block: int, key: Key) -> None:
        self.contents += 1
        self.blocks[block].key, self.blocks[block].number = key, self.contents
        self.found[key] = block

    def _take(self, block: int, table: Table) -> None:
        self._hold(block)
        table.blocks.append(block)

    def _hold(self, block: int) -> None:
        if self.blocks[block].ref_count == 0:
            del self.free[block]
        self.blocks[block].ref_count += 1

    def _drop(self, block: int) -> None:
        self.blocks[block].ref_count -= 1
        if self.blocks[block].ref_count == 0:
            self.free[block] = None
            if self.blocks[block].key is None:
                self.free.move_to_end(block, last=False)
