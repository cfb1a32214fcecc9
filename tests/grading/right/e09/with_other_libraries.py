from collections import OrderedDict
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F


@torch.no_grad()
def sample(logits, requests):
    """An exponential race: the least of exponential numbers over p wins with chance p."""
    tokens = logits.argmax(-1).tolist()
    for row, r in enumerate(requests):
        if r.temperature == 0.0:
            continue
        p = F.softmax(logits[row] / r.temperature, -1)
        if r.top_k:
            keep = p.topk(min(r.top_k, p.numel())).indices
            p = torch.zeros_like(p).index_copy(0, keep, p[keep])
            p = p / p.sum()
        if r.top_p is not None:
            best = p.argsort(descending=True)
            sums = p[best].cumsum(0)
            last = int((sums < r.top_p).sum())
            p[best[last + 1 :]] = 0
        race = torch.empty_like(p).exponential_(generator=r.generator)
        tokens[row] = int((p / race).argmax())
    return tokens


def cached_attention(layer, x, rope, keys, values, length):
    """The scores of old places, and a causal square behind them."""
    new = x.size(1)
    where = torch.arange(new) + length
    parts = {name: layer.split(getattr(layer, name)(x)).permute(0, 2, 1, 3) for name in "qkv"}
    turn = lambda z: rope(z.permute(0, 2, 1, 3), where).permute(0, 2, 1, 3)  # noqa: E731
    keys.narrow(2, length, new).copy_(turn(parts["k"]))
    values.narrow(2, length, new).copy_(parts["v"])
    k, v = (z.narrow(2, 0, length + new) for z in (keys, values))
    q = turn(parts["q"])
    b, h, _, c = q.shape
    grouped = q.reshape(b, k.shape[1], -1, c)  # the queries of a key head, all in a row
    mask = torch.ones(new, length + new, dtype=torch.bool).tril(length)
    mask = mask.repeat(h // k.shape[1], 1)
    out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask)
    return layer.o(out.reshape(b, h, new, c).permute(0, 2, 1, 3).reshape(b, new, h * c))


class Pool:
    """Two lines of free blocks: those without a name, and those with one."""

    def __init__(self, num_blocks):
        self.refs = num_blocks * [0]
        self.bare = dict.fromkeys(range(num_blocks))
        self.named = OrderedDict()
        self.key, self.block = {}, {}

    def available(self):
        return len(self.bare) + len(self.named)

    def take(self):
        if self.bare:
            block = next(iter(self.bare))
        elif self.named:
            block = next(iter(self.named))
            self.block.pop(self.key.pop(block))
        else:
            return None
        self.bare.pop(block, None)
        self.named.pop(block, None)
        self.refs[block] = 1
        return block

    def name(self, block, key):
        self.key[block], self.block[key] = key, block

    def find(self, key):
        return self.block[key] if key in self.block else None

    def hold(self, block):
        self.refs[block] += 1
        self.bare.pop(block, None)
        self.named.pop(block, None)

    def drop(self, block):
        self.refs[block] = self.refs[block] - 1
        if self.refs[block] == 0:
            line = self.named if block in self.key else self.bare
            line[block] = True


@dataclass
class BlockManager:
    """Parents are blocks' numbers of content, as in the package."""

    pool: object
    size: int
    content: dict = field(default_factory=dict)
    made: int = 0

    def full(self, tokens, index):
        return tuple(tokens[index * self.size : index * self.size + self.size])

    def admit(self, tokens, most, adapter=None):
        table, parent, index = [], adapter, 0
        while (index + 1) * self.size < len(tokens):
            block = self.pool.find((parent, self.full(tokens, index)))
            if block is None:
                break
            table.append(block)
            parent, index = self.content[block], index + 1
        for block in table:
            self.pool.hold(block)
        known = index * self.size
        if self.grow(table, known, min(known + most, len(tokens))) is None:
            for block in table[::-1]:
                self.pool.drop(block)
            return None
        return table, known

    def grow(self, table, start, stop):
        wanted = (stop + self.size - 1) // self.size
        copied = [
            n
            for n in range(start // self.size, min(wanted, len(table)))
            if self.pool.refs[table[n]] > 1
        ]
        if len(copied) + max(wanted - len(table), 0) > self.pool.available():
            return None
        copies = []
        for n in copied:
            own = self.pool.take()
            copies.append((table[n], own))
            self.pool.drop(table[n])
            table[n] = own
        while len(table) < wanted:
            table.append(self.pool.take())
        return copies

    def commit(self, table, tokens, computed, adapter=None):
        parent = adapter
        for n in range(computed // self.size):
            key = (parent, self.full(tokens, n))
            found = self.pool.find(key)
            if found is None:
                self.made += 1
                self.pool.name(table[n], key)
                self.content[table[n]] = self.made
                found = table[n]
            parent = self.content[found]

    def fork(self, table):
        for block in table:
            self.pool.hold(block)
        return table[:]

    def release(self, table):
        for _ in range(len(table)):
            self.pool.drop(table.pop(-1))


def schedule(running, waiting, manager, budget, most_running):
    """One function for both: who waits is tried by `admit`, who runs by `grow`."""
    work, copies, spent = [], [], 0
    at, lost = 0, 0
    while at < len(running) and spent < budget:
        one = running[at]
        stop = one.computed + min(len(one.tokens) - one.computed, budget - spent)
        more = manager.grow(one.table, one.computed, stop)
        while more is None:
            other = running[-1]
            del running[-1]
            manager.release(other.table)
            other.computed, lost = 0, lost + 1
            waiting.appendleft(other)
            if other is one:
                break
            more = manager.grow(one.table, one.computed, stop)
        if more is None:
            break
        work.append((one, stop - one.computed))
        copies.extend(more)
        spent += work[-1][1]
        at += 1
    for _ in range(0 if lost else len(waiting)):
        if spent == budget or len(running) == most_running:
            break
        one = waiting.popleft()
        room = manager.admit(one.tokens, budget - spent, one.adapter)
        if room is None:
            waiting.appendleft(one)
            break
        one.table, one.computed = room
        running.append(one)
        work.append((one, min(len(one.tokens) - one.computed, budget - spent)))
        spent += work[-1][1]
    return work, copies


class QuantizedKV:
    """All codes of a kind in one tensor, made anew when a group is full."""

    def __init__(self, bits=8, group=32):
        self.n, self.group = 2**bits - 1, group
        self.codes = self.steps = self.lows = None
        self.tail = None

    def append(self, k, v):
        tail = torch.stack((k, v))  # (2, K, T, C)
        self.tail = tail if self.tail is None else torch.cat((self.tail, tail), 2)
        full = self.tail.shape[2] // self.group
        for _ in range(full):
            part, rest = self.tail[:, :, : self.group], self.tail[:, :, self.group :]
            self.round(part)
            self.tail = rest.clone()

    def round(self, part):
        codes, steps, lows = [], [], []
        for z, dim in zip(part, (1, 2)):
            low, high = torch.aminmax(z, dim=dim, keepdim=True)
            step = (high - low) / self.n
            steps.append(step)
            lows.append(low)
            codes.append(((z - low) / step.clamp_min(1e-30)).round().to(torch.uint8))
        new = torch.stack(codes)
        self.codes = new if self.codes is None else torch.cat((self.codes, new), 2)
        self.steps = [*(self.steps or []), steps]
        self.lows = [*(self.lows or []), lows]

    def read(self):
        found = [[], []]
        for place, (steps, lows) in enumerate(zip(self.steps or [], self.lows or [])):
            part = self.codes[:, :, place * self.group : (place + 1) * self.group]
            for kind in (0, 1):
                found[kind].append(part[kind] * steps[kind] + lows[kind])
        return tuple(torch.cat([*found[kind], self.tail[kind]], 1) for kind in (0, 1))
