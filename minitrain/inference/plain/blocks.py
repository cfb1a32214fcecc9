"""A pool of blocks, of which the least recently used go first, and texts that share prefixes.

A block is `size` tokens' keys and values in every layer; here it is a number. `Pool` counts who
holds which and knows by what key its content is found; `BlockManager` has the tables' rules.
Paper: Kwon et al., PagedAttention, arXiv 2309.06180, sections 4.2 to 4.5.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from minitrain.inference.plain.digest import digest

Table = list[int]
Copies = list[tuple[int, int]]


class Pool:
    """`refs[block]` texts hold it. What nobody holds is free, and may still be found."""

    def __init__(self, num_blocks: int) -> None:
        self.refs = [0] * num_blocks
        self.free = OrderedDict.fromkeys(range(num_blocks))  # who is taken first stands first
        self.keys: dict[int, Hashable] = {}
        self.found: dict[Hashable, int] = {}

    def available(self) -> int:
        """The number of free blocks."""
        return len(self.free)

    def take(self) -> int | None:
        """A block for new content, held once; None where all are held."""
        if not self.free:
            return None
        block, _ = self.free.popitem(last=False)
        if block in self.keys:
            del self.found[self.keys.pop(block)]
        self.refs[block] = 1
        return block

    def name(self, block: int, key: Hashable) -> None:
        """Registers the block's content under this key."""
        self.keys[block] = key
        self.found[key] = block

    def find(self, key: Hashable) -> int | None:
        """The block with this content, whether anybody holds it or not."""
        return self.found.get(key)

    def hold(self, block: int) -> None:
        """One text more."""
        if self.refs[block] == 0:
            del self.free[block]
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        """One text less."""
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free[block] = None
            if block not in self.keys:  # nothing is lost with it
                self.free.move_to_end(block, last=False)


class BlockManager:
    """Tables over a pool's blocks of `size` tokens."""

    def __init__(self, pool: Pool, size: int) -> None:
        self.pool, self.size = pool, size
        self.key_of: dict[int, bytes] = {}  # of full blocks, until they are taken anew

    def admit(
        self, tokens: Sequence[int], most: int, adapter: Hashable = None
    ) -> tuple[Table, int] | None:
        """-> a table, and how many first tokens it has computed already; None: blocks are missing.

        It has room for `most` tokens more, if there are so many.
        """
        table: Table = []
        parent = adapter
        for start in range(0, len(tokens) - self.size, self.size):  # the last token is left over
            parent = digest(parent, tokens[start : start + self.size])
            block = self.pool.find(parent)
            if block is None:
                break
            self.pool.hold(block)
            table.append(block)
        computed = len(table) * self.size
        if self.grow(table, computed, min(len(tokens), computed + most)) is None:
            self.release(table)
            return None
        return table, computed

    def grow(self, table: Table, start: int, stop: int) -> Copies | None:
        """Room to write tokens start … stop - 1 -> blocks to copy, from and to, before that."""
        last = -(-stop // self.size)
        written = range(start // self.size, min(last, len(table)))
        shared = [index for index in written if self.pool.refs[table[index]] > 1]
        missing = max(0, last - len(table))
        if missing + len(shared) > self.pool.available():
            return None
        fresh = [self.pool.take() for _ in range(missing + len(shared))]
        for block in fresh:
            self.key_of.pop(block, None)  # its old content is gone
        copies = [(table[index], fresh.pop()) for index in shared]
        for index, (source, own) in zip(shared, copies):
            self.pool.drop(source)
            table[index] = own
        table += fresh
        return copies

    def commit(
        self, table: Table, tokens: Sequence[int], computed: int, adapter: Hashable = None
    ) -> None:
        """Registers the full blocks among the first `computed` tokens, which are written."""
        parent = adapter
        for index in range(computed // self.size):
            block, start = table[index], index * self.size
            if block not in self.key_of:
                key = digest(parent, tokens[start : start + self.size])
                self.key_of[block] = key
                if self.pool.find(key) is None:
                    self.pool.name(block, key)
            parent = self.key_of[block]

    def fork(self, table: Table) -> Table:
        """A second text with the same tokens so far."""
        for block in table:
            self.pool.hold(block)
        return list(table)

    def release(self, table: Table) -> None:
        """Gives all blocks back, the tail first: no text finds a tail without its beginning."""
        while table:
            self.pool.drop(table.pop())
