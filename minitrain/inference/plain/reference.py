"""Lab e09's exercises as the course solves them, each in a few lines.

    sample            one token for each of many requests, by its own parameters and generator
    cached_attention  a layer's attention over a cache: only new tokens are projected
    Pool              blocks with reference counts; the least recently used free one is reused first
    BlockManager      the block tables of sequences that share prefixes
    schedule          how many tokens of each request the next step computes: one rule for all
    QuantizedKV       quantized keys and values: keys by channel, values by token

A block is `size` tokens' keys and values in every layer; here it is just a number. Drafts, windows,
ranks and error messages are left to `sampling`, `cache` and `engine`.
Papers: Kwon et al., PagedAttention, arXiv 2309.06180, sections 4.2 to 4.5; Yu et al., Orca (OSDI
2022); Agrawal et al., Sarathi, 2308.16369; Liu et al., KIVI, 2402.02750.
Shapes: B requests or sequences  T new tokens  D width  V vocabulary  H query heads
K key/value heads  C head size  S cache length.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from minitrain.inference.plain.given import Codes, digest, from_codes, to_codes
from minitrain.model.attention.grouped_query import Attention

Rope = Callable[[Tensor, Tensor], Tensor]
Table = list[int]
Copies = list[tuple[int, int]]


class Asking(Protocol):
    """temperature 0: the likeliest; top_k, top_p None: no cut."""

    temperature: float
    top_k: int | None
    top_p: float | None
    generator: torch.Generator


def sample(logits: Tensor, requests: Sequence[Asking]) -> list[int]:
    """logits (B, V) -> one token per row, drawn by request b's parameters."""
    tokens = []
    for row, request in zip(logits, requests):
        if request.temperature == 0:
            tokens.append(int(row.argmax()))
            continue
        ordered, order = (row / request.temperature).sort(descending=True)  # (V,)
        p = ordered[: request.top_k].softmax(dim=0)  # (k,)
        if request.top_p is not None:
            p = p * (p.cumsum(0) - p < request.top_p)  # the likelier ones do not reach it yet
        tokens.append(int(order[torch.multinomial(p, 1, generator=request.generator)]))
    return tokens


def cached_attention(
    layer: Attention, x: Tensor, rope: Rope, keys: Tensor, values: Tensor, length: int
) -> Tensor:
    """x (B, T, D) -> (B, T, D); keys and values (B, K, S, C) hold `length` tokens, then T more.

    `rope(z, positions)` rotates z (B, T, heads, C) by positions (T,).
    """
    end = length + x.shape[1]
    positions = torch.arange(length, end)  # (T,)
    q, k, v = (layer.split(z(x)) for z in (layer.q, layer.k, layer.v))  # (B, T, heads, C)
    keys[:, :, length:end] = rope(k, positions).transpose(1, 2)
    values[:, :, length:end] = v.transpose(1, 2)
    seen = positions[:, None] >= torch.arange(end)  # (T, end)
    out = torch.nn.functional.scaled_dot_product_attention(
        rope(q, positions).transpose(1, 2),
        keys[:, :, :end],
        values[:, :, :end],
        attn_mask=seen,
        enable_gqa=True,
    )  # (B, H, T, C)
    return layer.o(out.transpose(1, 2).flatten(2))


class Pool:
    """`refs[block]` sequences hold a block. Blocks that none holds are free, but still findable."""

    def __init__(self, num_blocks: int) -> None:
        self.refs = [0] * num_blocks
        self.free = OrderedDict.fromkeys(range(num_blocks))  # who is taken first stands first
        self.keys: dict[int, Hashable] = {}
        self.found: dict[Hashable, int] = {}

    def available(self) -> int:
        """The number of free blocks."""
        return len(self.free)

    def take(self) -> int | None:
        """A block for new content, held once; None if all are held."""
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
        """The block with this content, whether held or free."""
        return self.found.get(key)

    def hold(self, block: int) -> None:
        """Adds a reference."""
        if self.refs[block] == 0:
            del self.free[block]
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        """Removes a reference."""
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
        """-> a table, and the number of its tokens already computed; None if blocks are missing.

        It has room for up to `most` more tokens.
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
        """Room to write tokens start … stop - 1 -> blocks to copy first, (from, to)."""
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
        """A second sequence with the same tokens so far."""
        for block in table:
            self.pool.hold(block)
        return list(table)

    def release(self, table: Table) -> None:
        """Frees all blocks, the tail first: a tail cannot be found without its prefix."""
        while table:
            self.pool.drop(table.pop())


class Asked(Protocol):
    """`tokens` of prompt and answer; the first `computed` are in the blocks of `table`."""

    tokens: list[int]
    computed: int
    table: Table
    adapter: Hashable


def schedule(
    running: list[Asked],
    waiting: deque[Asked],
    manager: BlockManager,
    budget: int,
    most_running: int,
) -> tuple[list[tuple[Asked, int]], Copies]:
    """-> the step's work, (request, how many tokens), and blocks to be copied before it.

    `running`, the oldest first, and `waiting` are changed in place.
    """
    work, copies, left, preempted = [], [], budget, False
    while len(work) < len(running) and left:
        request = running[len(work)]
        count = min(len(request.tokens) - request.computed, left)
        found = manager.grow(request.table, request.computed, request.computed + count)
        if found is None:
            youngest = running.pop()
            manager.release(youngest.table)
            youngest.computed = 0
            waiting.appendleft(youngest)
            preempted = True
            continue
        work.append((request, count))
        copies += found
        left -= count
    while waiting and left and len(running) < most_running and not preempted:
        request = waiting[0]
        admitted = manager.admit(request.tokens, left, request.adapter)
        if admitted is None:
            break
        request.table, request.computed = admitted
        running.append(waiting.popleft())
        count = min(len(request.tokens) - request.computed, left)
        work.append((request, count))
        left -= count
    return work, copies


class QuantizedKV:
    """One sequence's keys and values in one layer; `group` tokens are quantized together, once."""

    def __init__(self, bits: int = 8, group: int = 32) -> None:
        self.bits, self.group = bits, group
        self.keys: list[Codes] = []
        self.values: list[Codes] = []
        self.new: tuple[Tensor, Tensor] | None = None

    def append(self, k: Tensor, v: Tensor) -> None:
        """Appends k and v (K, T, C), T more tokens."""
        if self.new is not None:
            k, v = torch.cat((self.new[0], k), dim=1), torch.cat((self.new[1], v), dim=1)
        while k.shape[1] >= self.group:
            self.keys.append(to_codes(k[:, : self.group], 1, self.bits))
            self.values.append(to_codes(v[:, : self.group], 2, self.bits))
            k, v = k[:, self.group :], v[:, self.group :]
        self.new = k.clone(), v.clone()

    def read(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens, (K, n, C) each."""
        keys, values = ([from_codes(*one) for one in kept] for kept in (self.keys, self.values))
        return torch.cat((*keys, self.new[0]), dim=1), torch.cat((*values, self.new[1]), dim=1)
