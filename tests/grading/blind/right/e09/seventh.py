# a reader's own answers, from the notebook alone
from collections import OrderedDict

import torch
from minitrain.inference.plain.codes import from_codes, to_codes
from minitrain.inference.plain.digest import digest


def sample(logits: torch.Tensor, requests: list) -> list[int]:
    tokens = []
    for row, request in zip(logits, requests):
        temperature = request.temperature
        if temperature == 0:
            tokens.append(int(row.argmax()))
            continue
        scaled, order = (row / temperature).sort(descending=True)
        kept = scaled[: request.top_k]
        p = kept.softmax(0)
        if request.top_p is not None:
            likelier = p.cumsum(0) - p
            cut = likelier >= request.top_p
            cut[0] = False
            p = p.masked_fill(cut, 0.0)
        place = torch.multinomial(p, 1, generator=request.generator)
        tokens.append(int(order[place]))
    return tokens


def cached_attention(layer, x, rope, keys, values, length: int):
    end = length + x.shape[1]
    positions = torch.arange(length, end)
    q = rope(layer.split(layer.q(x)), positions).transpose(1, 2)
    k = rope(layer.split(layer.k(x)), positions).transpose(1, 2)
    v = layer.split(layer.v(x)).transpose(1, 2)
    keys[:, :, length:end] = k
    values[:, :, length:end] = v
    every_key = keys[:, :, :end]
    every_value = values[:, :, :end]
    seen = positions[:, None] >= torch.arange(end)
    # the heads of one group stand next to each other
    group = q.shape[1] // keys.shape[1]
    every_key = every_key.repeat_interleave(group, dim=1)
    every_value = every_value.repeat_interleave(group, dim=1)
    out = torch.nn.functional.scaled_dot_product_attention(
        q, every_key, every_value, attn_mask=seen
    )
    return layer.o(out.transpose(1, 2).flatten(2))


class Pool:
    def __init__(self, num_blocks: int):
        self.refs = [0] * num_blocks
        # in the order in which they will be taken
        self.free = OrderedDict((block, None) for block in range(num_blocks))
        self.block_of = {}
        self.key_of = {}

    def available(self) -> int:
        return len(self.free)

    def take(self) -> int | None:
        if not self.free:
            return None
        block, _ = self.free.popitem(last=False)
        if block in self.key_of:
            del self.block_of[self.key_of.pop(block)]
        self.refs[block] = 1
        return block

    def name(self, block: int, key) -> None:
        self.block_of[key] = block
        self.key_of[block] = key

    def find(self, key) -> int | None:
        return self.block_of.get(key)

    def hold(self, block: int) -> None:
        if self.refs[block] == 0:
            del self.free[block]
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free[block] = None
            if block not in self.key_of:
                self.free.move_to_end(block, last=False)


class BlockManager:
    def __init__(self, pool, size: int):
        self.pool = pool
        self.size = size
        self.keys = {}  # of blocks whose content is computed, with a name or without

    def blocks_for(self, count):
        return -(-count // self.size)

    def new_block(self):
        block = self.pool.take()
        self.keys.pop(block, None)
        return block

    def admit(self, tokens: list[int], most: int, adapter=None):
        table, key = [], adapter
        while (len(table) + 1) * self.size < len(tokens):
            start = len(table) * self.size
            key = digest(key, tokens[start : start + self.size])
            block = self.pool.find(key)
            if block is None:
                break
            table.append(block)
        known = len(table) * self.size
        stop = min(len(tokens), known + most)
        # the known blocks that nobody holds are no room for new ones
        room = self.pool.available() - sum(self.pool.refs[b] == 0 for b in table)
        if self.blocks_for(stop) - len(table) > room:
            return None
        for block in table:
            self.pool.hold(block)
        self.grow(table, known, stop)
        return table, known

    def grow(self, table: list[int], start: int, stop: int):
        lacking = max(0, self.blocks_for(stop) - len(table))
        written = range(start // self.size, min(self.blocks_for(stop), len(table)))
        shared = [i for i in written if self.pool.refs[table[i]] > 1]
        if start >= stop:
            shared = []
        if lacking + len(shared) > self.pool.available():
            return None
        copies = []
        for i in shared:
            old, table[i] = table[i], self.new_block()
            self.pool.drop(old)
            copies.append((old, table[i]))
        for _ in range(lacking):
            table.append(self.new_block())
        return copies

    def commit(self, table: list[int], tokens: list[int], computed: int, adapter=None):
        parent = adapter
        for i in range(computed // self.size):
            block = table[i]
            if block not in self.keys:
                own = tokens[i * self.size : (i + 1) * self.size]
                key = digest(parent, own)
                self.keys[block] = key
                if self.pool.find(key) is None:
                    self.pool.name(block, key)
            parent = self.keys[block]

    def fork(self, table: list[int]) -> list[int]:
        for block in table:
            self.pool.hold(block)
        return list(table)

    def release(self, table: list[int]) -> None:
        while table:
            self.pool.drop(table.pop())


def schedule(running: list, waiting, manager, budget: int, most_running: int):
    work, copies, left, preempted = [], [], budget, False
    at = 0
    while at < len(running) and left > 0:
        request = running[at]
        count = min(len(request.tokens) - request.computed, left)
        if count <= 0:
            at += 1
            continue
        asked = manager.grow(request.table, request.computed, request.computed + count)
        if asked is None:
            youngest = running.pop()
            manager.release(youngest.table)
            youngest.computed = 0
            waiting.appendleft(youngest)
            preempted = True
            continue
        copies += asked
        work.append((request, count))
        left -= count
        at += 1
    while waiting and not preempted and left > 0 and len(running) < most_running:
        request = waiting[0]
        found = manager.admit(request.tokens, left, request.adapter)
        if found is None:
            break
        waiting.popleft()
        request.table, request.computed = found
        count = min(len(request.tokens) - request.computed, left)
        running.append(request)
        work.append((request, count))
        left -= count
    return work, copies


class QuantizedKV:
    def __init__(self, bits: int = 8, group: int = 32):
        self.bits = bits
        self.group = group
        self.rounded_keys = []
        self.rounded_values = []
        self.new_keys = None
        self.new_values = None

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        if self.new_keys is not None:
            k = torch.cat([self.new_keys, k], dim=1)
            v = torch.cat([self.new_values, v], dim=1)
        while k.shape[1] >= self.group:
            size = self.group
            self.rounded_keys.append(to_codes(k[:, :size], 1, self.bits))
            self.rounded_values.append(to_codes(v[:, :size], 2, self.bits))
            k, v = k[:, size:], v[:, size:]
        self.new_keys = k.clone()
        self.new_values = v.clone()

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys = [from_codes(*one) for one in self.rounded_keys]
        values = [from_codes(*one) for one in self.rounded_values]
        keys.append(self.new_keys)
        values.append(self.new_values)
        return torch.cat(keys, dim=1), torch.cat(values, dim=1)
