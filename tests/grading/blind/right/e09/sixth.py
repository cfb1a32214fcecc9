# a reader's own answers, from the notebook alone
from collections import OrderedDict

import torch
from minitrain.inference.plain.codes import from_codes, to_codes
from minitrain.inference.plain.digest import digest


def sample(logits: torch.Tensor, requests: list) -> list[int]:
    told = []
    for row, request in zip(logits, requests):
        if request.temperature == 0:
            told.append(int(row.argmax()))
            continue
        scaled = (row - row.max()) / request.temperature
        ordered, order = scaled.sort(descending=True)
        p = ordered[: request.top_k].softmax(0)
        if request.top_p is not None:
            likelier = p.cumsum(0) - p
            cut = likelier >= request.top_p
            cut[0] = False
            p = p.masked_fill(cut, 0.0)
        place = torch.multinomial(p, 1, generator=request.generator)
        told.append(int(order[place]))
    return told


def cached_attention(layer, x, rope, keys, values, length: int):
    end = length + x.shape[1]
    positions = torch.arange(length, end, device=x.device)
    q = rope(layer.split(layer.q(x)), positions)
    k = rope(layer.split(layer.k(x)), positions)
    v = layer.split(layer.v(x))
    keys[:, :, length:end] = k.transpose(1, 2)
    values[:, :, length:end] = v.transpose(1, 2)
    places = torch.arange(end, device=x.device)
    seen = places[None, :] <= positions[:, None]
    heard = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        keys[:, :, :end],
        values[:, :, :end],
        attn_mask=seen,
        enable_gqa=True,
    )
    return layer.o(heard.transpose(1, 2).flatten(2))


class Pool:
    def __init__(self, num_blocks: int):
        self.refs = [0] * num_blocks
        self.free = OrderedDict.fromkeys(range(num_blocks))  # the next to be taken first
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
        self.keys = {}  # of full, computed blocks, also of those without a name

    def _blocks(self, count):
        return -(-count // self.size)

    def _fresh(self):
        block = self.pool.take()
        self.keys.pop(block, None)
        return block

    def admit(self, tokens: list[int], most: int, adapter=None):
        # look first, touch nothing: a failure must leave no trace
        found = []
        parent = adapter
        full = (len(tokens) - 1) // self.size
        for at in range(full):
            key = digest(parent, tokens[at * self.size : (at + 1) * self.size])
            block = self.pool.find(key)
            if block is None:
                break
            self.keys[block] = key
            found.append(block)
            parent = key
        known = len(found) * self.size
        stop = min(len(tokens), known + most)
        lacking = max(0, self._blocks(stop) - len(found))
        revived = sum(self.pool.refs[block] == 0 for block in found)
        if lacking + revived > self.pool.available():
            return None
        for block in found:
            self.pool.hold(block)
        table = found + [self._fresh() for _ in range(lacking)]
        return table, known

    def grow(self, table: list[int], start: int, stop: int):
        if stop <= start:
            return []
        end = self._blocks(stop)
        written = range(start // self.size, min(end, len(table)))
        shared = [at for at in written if self.pool.refs[table[at]] > 1]
        lacking = max(0, end - len(table))
        if lacking + len(shared) > self.pool.available():
            return None
        copies = []
        for at in shared:
            old = table[at]
            new = self._fresh()
            copies.append((old, new))
            table[at] = new
            self.pool.drop(old)
        for _ in range(lacking):
            table.append(self._fresh())
        return copies

    def commit(self, table: list[int], tokens: list[int], computed: int, adapter=None):
        parent = adapter
        for at in range(computed // self.size):
            block = table[at]
            if block not in self.keys:
                own = tokens[at * self.size : (at + 1) * self.size]
                self.keys[block] = digest(parent, own)
            parent = self.keys[block]
            if self.pool.find(parent) is None:
                self.pool.name(block, parent)

    def fork(self, table: list[int]) -> list[int]:
        for block in table:
            self.pool.hold(block)
        return list(table)

    def release(self, table: list[int]) -> None:
        for block in reversed(table):
            self.pool.drop(block)
        table.clear()


def schedule(running: list, waiting, manager, budget: int, most_running: int):
    work, copies = [], []
    left, preempted, place = budget, False, 0
    while place < len(running) and left > 0:
        request = running[place]
        count = min(len(request.tokens) - request.computed, left)
        if count == 0:
            place += 1
            continue
        start = request.computed
        new = manager.grow(request.table, start, start + count)
        while new is None:
            youngest = running.pop()
            manager.release(youngest.table)
            youngest.computed = 0
            waiting.appendleft(youngest)
            preempted = True
            if youngest is request:
                break
            new = manager.grow(request.table, start, start + count)
        if new is None:
            break
        copies.extend(new)
        work.append((request, count))
        left -= count
        place += 1
    while waiting and left > 0 and len(running) < most_running and not preempted:
        request = waiting[0]
        room = manager.admit(request.tokens, left, request.adapter)
        if room is None:
            break
        waiting.popleft()
        running.append(request)
        request.table, request.computed = room
        count = min(len(request.tokens) - request.computed, left)
        work.append((request, count))
        left = left - count
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
        full = k.shape[1] // self.group * self.group
        for start in range(0, full, self.group):
            part = slice(start, start + self.group)
            self.rounded_keys.append(to_codes(k[:, part], 1, self.bits))
            self.rounded_values.append(to_codes(v[:, part], 2, self.bits))
        # a slice would keep all that was joined
        self.new_keys = k[:, full:].clone()
        self.new_values = v[:, full:].clone()

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys = [from_codes(*one) for one in self.rounded_keys]
        values = [from_codes(*one) for one in self.rounded_values]
        keys = torch.cat([*keys, self.new_keys], dim=1)
        values = torch.cat([*values, self.new_values], dim=1)
        return keys, values
