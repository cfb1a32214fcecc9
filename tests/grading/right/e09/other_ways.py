import heapq
import math

import torch


def sample(logits, requests):
    """One uniform number a request, by the sums of probabilities; masks in place of sorted slices."""
    found = []
    for z, ask in zip(logits.double(), requests):
        if not ask.temperature:
            found.append(z.argmax().item())
            continue
        z = (z - z.max()) / ask.temperature
        if ask.top_k is not None and ask.top_k < len(z):
            z[z < torch.topk(z, ask.top_k).values[-1]] = -math.inf
        p = torch.exp(z) / torch.exp(z).sum()
        if ask.top_p is not None:
            places = torch.argsort(-p)
            total = 0.0
            for place in places.tolist():
                if total >= ask.top_p:
                    p[place] = 0.0
                total += p[place].item()
        u = torch.rand((), generator=ask.generator, dtype=torch.float64) * p.sum()
        found.append(int(torch.searchsorted(p.cumsum(0), u, right=True)))
    return found


def cached_attention(layer, x, rope, keys, values, length):
    """By hand, head by head of the keys."""
    b, t, _ = x.shape
    at = length + torch.arange(t)
    q, k = rope(layer.split(layer.q(x)), at), rope(layer.split(layer.k(x)), at)
    v = layer.split(layer.v(x))
    for place in range(t):
        keys[:, :, length + place] = k[:, place]
        values[:, :, length + place] = v[:, place]
    past_k, past_v = keys[:, :, : length + t], values[:, :, : length + t]
    group = q.shape[2] // keys.shape[1]
    hidden = torch.triu(torch.ones(t, length + t, dtype=torch.bool), diagonal=length + 1)
    outs = []
    for head in range(q.shape[2]):
        own = past_k[:, head // group], past_v[:, head // group]
        scores = q[:, :, head] @ own[0].transpose(1, 2) / math.sqrt(q.shape[-1])
        outs.append(scores.masked_fill(hidden, -math.inf).softmax(-1) @ own[1])
    return layer.o(torch.cat(outs, -1))


class Pool:
    """A heap of free blocks, in which old entries are skipped."""

    def __init__(self, num_blocks):
        self.refs = [0] * num_blocks
        self.stamp, self.clock = [0] * num_blocks, 0
        self.heap = [(0, 0, block) for block in range(num_blocks)]
        self.blocks, self.names = {}, [None] * num_blocks
        self.count = num_blocks

    def available(self):
        return self.count

    def take(self):
        while self.heap:
            _, stamp, block = heapq.heappop(self.heap)
            if self.refs[block] or stamp != self.stamp[block]:
                continue
            if self.names[block] is not None:
                self.blocks.pop(self.names[block][0])
                self.names[block] = None
            self.hold(block)
            return block
        return None

    def name(self, block, key):
        self.names[block] = (key,)
        self.blocks[key] = block

    def find(self, key):
        return self.blocks.get(key)

    def hold(self, block):
        self.count -= self.refs[block] == 0
        self.refs[block] += 1

    def drop(self, block):
        self.refs[block] -= 1
        if not self.refs[block]:
            self.count += 1
            self.clock += 1
            self.stamp[block] = self.clock
            heapq.heappush(self.heap, (self.names[block] is not None, self.clock, block))


class BlockManager:
    """Keys are made anew for every call, the whole chain."""

    def __init__(self, pool, size):
        self.pool, self.size = pool, size

    def chain(self, tokens, adapter):
        last, found = ("adapter", adapter), []
        for place in range(len(tokens) // self.size):
            last = hash((last, tuple(tokens[place * self.size : (place + 1) * self.size])))
            found.append(last)
        return found

    def admit(self, tokens, most, adapter=None):
        known = []
        for key in self.chain(tokens[:-1], adapter):
            block = self.pool.find(key)
            if block is None:
                break
            known.append(block)
        stop = min(len(tokens), len(known) * self.size + most)
        more = math.ceil(stop / self.size) - len(known)
        if more + sum(self.pool.refs[block] == 0 for block in known) > self.pool.available():
            return None
        for block in known:
            self.pool.hold(block)
        return known + [self.pool.take() for _ in range(more)], len(known) * self.size

    def grow(self, table, start, stop):
        held = [i for i in range(start // self.size, len(table)) if self.pool.refs[table[i]] > 1]
        held = [i for i in held if i * self.size < stop]
        more = max(math.ceil(stop / self.size) - len(table), 0)
        if self.pool.available() < more + len(held):
            return None
        pairs = []
        for i in held:
            own = self.pool.take()
            pairs.append((table[i], own))
            self.pool.drop(table[i])
            table[i] = own
        for _ in range(more):
            table.append(self.pool.take())
        return pairs

    def commit(self, table, tokens, computed, adapter=None):
        for block, key in zip(table, self.chain(tokens[:computed], adapter)):
            if self.pool.find(key) is None:
                self.pool.name(block, key)

    def fork(self, table):
        other = []
        for block in table:
            self.pool.hold(block)
            other.append(block)
        return other

    def release(self, table):
        for block in reversed(table):
            self.pool.drop(block)
        del table[:]


def schedule(running, waiting, manager, budget, most_running):
    """Over a copy of who runs; the preempted are taken out of it."""
    plan, pairs, gone = [], [], False
    for request in list(running):
        if request not in running or not budget:
            continue
        stop = min(len(request.tokens), request.computed + budget)
        while request in running:
            new = manager.grow(request.table, request.computed, stop)
            if new is not None:
                plan.append((request, stop - request.computed))
                pairs.extend(new)
                budget -= stop - request.computed
                break
            last = running.pop(-1)
            manager.release(last.table)
            last.computed, gone = 0, True
            waiting.insert(0, last)
    if gone:
        return plan, pairs
    while waiting and budget > 0 and len(running) < most_running:
        got = manager.admit(waiting[0].tokens, budget, waiting[0].adapter)
        if not got:
            return plan, pairs
        request = waiting.popleft()
        request.table, request.computed = got
        running.append(request)
        plan.append((request, min(budget, len(request.tokens) - request.computed)))
        budget -= plan[-1][1]
    return plan, pairs


class QuantizedKV:
    """Room for a group, filled token by token; codes joined in one tensor."""

    def __init__(self, bits=8, group=32):
        self.top, self.group, self.count = 2**bits - 1, group, 0
        self.room = None
        self.done = ([], [])

    def append(self, k, v):
        if self.room is None:
            self.room = torch.zeros(2, k.shape[0], self.group, k.shape[2])
        for place in range(k.shape[1]):
            self.room[0, :, self.count], self.room[1, :, self.count] = k[:, place], v[:, place]
            self.count += 1
            if self.count == self.group:
                for which, dim in ((0, 1), (1, 2)):
                    z = self.room[which]
                    low, high = z.min(dim, keepdim=True).values, z.max(dim, keepdim=True).values
                    step = (high - low) / self.top
                    safe = torch.where(step > 0, step, torch.ones_like(step))
                    codes = torch.round((z - low) / safe).byte()
                    self.done[which].append((codes, step, low))
                self.count = 0

    def read(self):
        out = []
        for which in (0, 1):
            parts = [codes.float() * step + low for codes, step, low in self.done[which]]
            out.append(torch.cat([*parts, self.room[which, :, : self.count]], 1))
        return tuple(out)
