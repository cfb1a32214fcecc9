"""Ownership of pages: block tables, reference counts, and prefixes that requests share.

    sequence A   [Once upon a ][time there wa][s a little ][dog …]      table A  7 2 5 1
    sequence B   [Once upon a ][time there wa][s a big bla][ck c…]      table B  7 2 0 4
                     7: 2 refs      2: 2 refs

A block is `block_size` tokens' keys and values in every layer. A full one can be found by its key
(parent, adapter, tokens): the parent is the number given to the previous block when it became
findable, so equal tokens after another prefix, or under another adapter, have another key. The
dictionary holds the key itself, not only its hash: a hash collision never gives a request another
one's keys and values. (vLLM stores a SHA-256 instead, which is 32 bytes for any block.)

A block in no table stays findable until it is reused: the free list, in the order of reuse, is also
the LRU list. Blocks that are not findable go to its front; a sequence frees its tail first, because
a tail cannot be found without its prefix. An OrderedDict is a doubly linked list plus a dictionary,
so that a hit in its middle is removed in O(1).

With a sliding window a sequence frees the blocks that none of its tokens will read any more; GONE
takes their place, and they stay findable as before, until they are reused.

    window 5, 9 tokens in blocks of 4    0 1 2 3 | 4 5 6 7 | 8        table  GONE 2 5
                                the next token reads 5 to 8

A prefix is found if all its blocks still exist, and only those in the window are held. Beginnings
are freed before ends, so they are also the first to be evicted.
No tensors here. Paper: Kwon et al., PagedAttention, arXiv 2309.06180, sections 4.2 to 4.5.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from minitrain.errors import check_whole

Key = tuple[int, Hashable, tuple[int, ...]]  # parent's number, adapter, tokens
Copies = list[tuple[int, int]]  # blocks to copy, (from, to), before anything is written
ROOT = 0  # the parent of first blocks
GONE = -1  # in place of a block that left the window


@dataclass
class Block:
    ref_count: int = 0
    key: Key | None = None  # None: not findable
    number: int = ROOT  # given to this content; its children's keys refer to it


@dataclass
class Table:
    """A sequence's blocks in order, the first `gone` of which are GONE; the first `committed` are
    or were findable, and `parent` is the last one's number."""

    blocks: list[int] = field(default_factory=list)
    committed: int = 0
    parent: int = ROOT
    gone: int = 0
    findable: bool = True  # False: it has a missing block, so nothing after it can be found

    @property
    def held(self) -> int:
        return len(self.blocks) - self.gone


class BlockManager:
    """`queried` and `hit` count tokens looked up and found at admission; `left` counts blocks that
    have left the `window`."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        share_prefixes: bool = True,
        window: int | None = None,
    ) -> None:
        check_whole("num_blocks", num_blocks)
        check_whole("block_size", block_size)
        self.block_size, self.share_prefixes, self.window = block_size, share_prefixes, window
        self.blocks = [Block() for _ in range(num_blocks)]
        self.free = OrderedDict.fromkeys(range(num_blocks))  # in the order of reuse
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
        """Number of blocks of the first `num_tokens` that no later token reads."""
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
        """Allocates a sequence's beginning: its known prefix, and up to `most` more tokens.

        -> (table, number of tokens already computed), or None if blocks are missing. The last
        token of `tokens` never counts as computed, since its logits are needed.
        `elsewhere`: the number of tokens that another rank computed and that will be written here;
        those outside the window get no block.
        """
        matched = self.match(tokens, adapter)
        computed = len(matched) * self.block_size
        gone = self.out_of_window(max(computed, elsewhere))
        parent = self.blocks[matched[-1]].number if matched else ROOT
        table = Table([GONE] * gone, len(matched), parent, gone, gone <= len(matched))
        for block in matched[gone:]:  # first, so that held blocks cannot be reused
            self._take(block, table)
        if self.grow(table, computed, min(len(tokens), computed + most)) is None:
            self.release(table)
            return None
        self.queried += len(tokens)
        self.hit += computed
        return table, computed

    def match(self, tokens: Sequence[int], adapter: Hashable) -> list[int]:
        """The full blocks that hold the longest known prefix."""
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
        """Makes all content unfindable: the weights that computed it have changed."""
        self.found.clear()
        for block in self.blocks:
            block.key = None

    def grow(self, table: Table, written: int, num_tokens: int) -> Copies | None:
        """Makes room for `num_tokens`, of which `written` are present; None if blocks are missing,
        with nothing changed. A shared block that would be written to is copied first."""
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
        """Makes the blocks filled by the first `written` tokens findable, once they are computed.

        If another sequence has computed the same block in the meantime, only one is kept.
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
        """Frees the blocks that no token after the first `num_tokens` reads, once computed."""
        for index in range(table.gone, self.out_of_window(num_tokens)):
            self._drop(table.blocks[index])
            table.blocks[index] = GONE
            table.gone += 1
            self.left += 1

    def fork(self, table: Table, num_tokens: int) -> Table | None:
        """A second sequence with the same first tokens, sharing blocks. None if blocks that it
        would read have left the first one's window."""
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
        """Frees the blocks after the first `num_tokens`: those of rejected drafts."""
        while len(table.blocks) > self.blocks_for(num_tokens):
            block = table.blocks.pop()
            if block != GONE:
                self._drop(block)

    def release(self, table: Table) -> None:
        """Frees all blocks, the tail first."""
        self.truncate(table, 0)
        table.committed, table.parent, table.gone, table.findable = 0, ROOT, 0, True

    def _key(self, parent: int, adapter: Hashable, tokens: Sequence[int], index: int) -> Key:
        start = index * self.block_size
        return parent, adapter, tuple(tokens[start : start + self.block_size])

    def _oldest(self) -> int:
        """Evicts the least recently used block: its content can no longer be found."""
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
