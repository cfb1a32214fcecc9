"""The probes of lab e09: what runs in the sandbox, beside a submission on inference.

Nothing here knows what is expected: the verdicts, in test_e09_inference.py, are made from what
comes back. Pool and manager are plain ones of the grader's own, so that no exercise rests on
another one's answer; the loops over them are the grader's too, and run the rule itself as well.
"""

from __future__ import annotations

import sys
from collections import deque
from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import nn

from .alive import Alive
from .in_turn import fresh

# --- the sampler


def sampled(f, batches):
    """batches: (logits (B, V), asked [(temperature, top_k, top_p, seed)], turns)."""
    return [in_turns(f, *batch) for batch in batches]


def in_turns(f, logits, asked, turns):
    """The same batch several times, with the same generators: a list of tokens a turn."""
    requests = [
        SimpleNamespace(
            temperature=t, top_k=k, top_p=p, generator=torch.Generator().manual_seed(seed)
        )
        for t, k, p, seed in asked
    ]
    given, before = logits.clone(), [r.generator.get_state() for r in requests]
    everybody = torch.get_rng_state()
    tokens = [f(given, requests) for _ in range(turns)]
    return {
        "tokens": tokens,
        "moved": [not torch.equal(r.generator.get_state(), s) for r, s in zip(requests, before)],
        "everybody": torch.equal(torch.get_rng_state(), everybody),
        "unchanged": torch.equal(given, logits),
    }


# --- attention over a cache


class Layer(nn.Module):
    """Four matrices, and how many tokens each was given."""

    def __init__(self, weights, size):
        super().__init__()
        self.size, self.seen = size, []
        for name, weight in zip("qkvo", weights):
            linear = nn.Linear(*reversed(weight.shape), bias=False, dtype=weight.dtype)
            linear.weight = nn.Parameter(weight.clone(), requires_grad=False)
            linear.register_forward_pre_hook(self.note(name))
            setattr(self, name, linear)

    def note(self, name):
        return lambda module, args: self.seen.append((name, tuple(args[0].shape)))

    def split(self, z):
        return z.unflatten(-1, (-1, self.size))


def turned(z, positions):
    """z (B, T, heads, C): a rotation by position, which is not quite RoPE's."""
    half = z.shape[-1] // 2
    speeds = 0.7 ** torch.arange(half, dtype=z.dtype)
    angles = (positions.to(z.dtype)[:, None] * speeds)[:, None]  # (T, 1, C/2)
    a, b = z[..., :half], z[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


def read_in_parts(f, cases):
    """cases: (weights, head size, x (B, T, D), parts, room, kv_heads)."""
    return [one_read(f, *case) for case in cases]


@torch.no_grad()
def one_read(f, weights, size, x, parts, room, kv_heads):
    layer, turns = Layer(weights, size), []

    def rope(z, positions):
        turns.append((tuple(z.shape), positions.clone()))
        return turned(z, positions)

    keys, values = torch.full((2, len(x), kv_heads, room, size), torch.nan, dtype=x.dtype).unbind(0)
    keys, values = keys.clone(), values.clone()
    outs, length, same = [], 0, True
    for part in x.split(parts, dim=1):
        given = part.clone()
        out = f(layer, given, rope, keys, values, length)
        same = same and torch.equal(given, part)
        outs.append(fresh(out))
        length += part.shape[1]
    return {
        "outs": outs, "keys": keys, "values": values, "unchanged": same,
        "turned": turns, "projected": layer.seen,
    }  # fmt: skip


# --- the pool


def pooled(f, scripts):
    """scripts: (num_blocks, operations); an operation may name a block that an earlier `take` gave."""
    return [one_pool(f, *script) for script in scripts]


def one_pool(f, num_blocks, operations):
    pool, taken, notes = f(num_blocks), {}, []
    for kind, *what in [("look",), *operations]:
        result = None
        if kind == "take":
            result = taken[what[0]] = pool.take()
        elif kind in ("hold", "drop"):
            getattr(pool, kind)(taken[what[0]])
        elif kind == "name":
            pool.name(taken[what[0]], what[1])
        elif kind == "find":
            result = pool.find(what[0])
        elif kind == "again":  # what was found is held again
            result = taken[what[1]] = pool.find(what[0])
            if result is not None:
                pool.hold(result)
        notes.append((result, list(pool.refs), pool.available()))
        if kind in ("take", "again") and not isinstance(result, int):
            break
    return notes


class Compared(int):
    """A block's number; `seen` holds one item for each comparison, also of a search in a list."""

    seen: ClassVar[list] = []
    __hash__ = int.__hash__

    def __eq__(self, other):
        self.seen.append(1)
        return int(self) == int(other)

    def __ne__(self, other):
        return not self == other


def steps_of(f, sizes):
    """Lines run and numbers compared while free blocks are held and dropped, in pools so large."""
    return [steps_in(f(size)) for size in sizes]


def steps_in(pool):
    blocks = [pool.take() for _ in range(40)]
    for block in blocks:
        pool.name(block, ("key", block))
    for block in blocks:
        pool.drop(block)
    Compared.seen.clear()

    def trace(*event):
        Compared.seen.append(1)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    for block in map(Compared, blocks[10:20]):  # free for a while, neither the first nor the last
        pool.hold(block)
        pool.drop(block)
    sys.settrace(before)
    return len(Compared.seen)


# --- the block manager


class OurPool:
    """The exercise's seven names over a list, and a note of each name and drop."""

    def __init__(self, num_blocks):
        self.refs = [0] * num_blocks
        self._free = list(range(num_blocks))
        self._keys, self._found = {}, {}
        self._named, self._dropped = [], []

    def available(self):
        return len(self._free)

    def take(self):
        if not self._free:
            return None
        block = self._free.pop(0)
        if block in self._keys:
            del self._found[self._keys.pop(block)]
        self.refs[block] = 1
        return block

    def is_one(self, block):
        if block is None:
            raise ValueError("a table has None for a block: `take` gave it, for none was free")

    def name(self, block, key):
        self.is_one(block)
        self._named.append((block, key))
        if block in self._keys:
            self._found.pop(self._keys[block], None)
        self._keys[block] = key
        self._found[key] = block

    def find(self, key):
        return self._found.get(key)

    def hold(self, block):
        self.is_one(block)
        if self.refs[block] == 0:
            self._free.remove(block)
        self.refs[block] += 1

    def drop(self, block):
        self.is_one(block)
        if self.refs[block] < 1:
            raise ValueError(f"block {block} is dropped, and nobody holds it")
        self._dropped.append(block)
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self._free.insert(len(self._free) if block in self._keys else 0, block)


def managed(f, scripts):
    """scripts: (num_blocks, size, operations), see `Traffic`."""
    return [
        Traffic(f, num_blocks, size).run(operations) for num_blocks, size, operations in scripts
    ]


class Traffic:
    """Texts over a manager. Each operation gives notes of what was called and what it gave.

    ("admit", name, tokens, most, adapter)    and computes what it has got room for; with a number
                                              behind, so many of its tokens only
    ("go", name, count, more)                 more tokens at its end, then so many computed
    ("fork", name, child)   ("end", name)
    """

    def __init__(self, f, num_blocks, size):
        self.pool = OurPool(num_blocks)
        self.manager = f(self.pool, size)
        self.texts, self.notes, self.keys = {}, [], {}

    def run(self, operations):
        for kind, name, *what in operations:
            if kind == "admit" or name in self.texts:
                getattr(self, kind)(name, *what)
        return self.notes

    def note(self, call, name, **more):
        tables = {n: list(t.table) for n, t in self.texts.items()}
        named = [(block, self.number(key), len(repr(key))) for block, key in self.pool._named]
        found = sorted((block, self.number(key)) for key, block in self.pool._found.items())
        self.notes.append(
            {
                "call": call, "name": name, "tables": tables, "refs": list(self.pool.refs),
                "available": self.pool.available(), "named": named, "found": found,
                "dropped": list(self.pool._dropped), **more,
            }
        )  # fmt: skip
        self.pool._named.clear()
        self.pool._dropped.clear()

    def number(self, key):
        """Keys may be anything; what comes back is a number for each."""
        return self.keys.setdefault(key, len(self.keys))

    def admit(self, name, tokens, most, adapter, done=None):
        given = list(tokens)
        result = self.manager.admit(given, most, adapter)
        fits = isinstance(result, (tuple, list)) and len(result) == 2
        if not fits or not isinstance(result[0], list) or not isinstance(result[1], int):
            self.note("admit", name, result=None if result is None else repr(result)[:80])
            return
        table, known = result
        self.texts[name] = SimpleNamespace(
            table=table, tokens=list(tokens), computed=known, adapter=adapter
        )
        self.note("admit", name, result=known)
        self.written(name, min(len(tokens), known + (most if done is None else done)))

    def go(self, name, count, more):
        text = self.texts[name]
        text.tokens += more
        stop = min(len(text.tokens), text.computed + count)
        if stop == text.computed:
            return
        copies = self.manager.grow(text.table, text.computed, stop)
        plain = copies if copies is None else [tuple(pair) for pair in copies]
        self.note("grow", name, result=plain, start=text.computed, stop=stop)
        if copies is not None:
            self.written(name, stop)

    def written(self, name, stop):
        text = self.texts[name]
        start, text.computed = text.computed, stop
        self.manager.commit(text.table, list(text.tokens), stop, text.adapter)
        self.note("commit", name, start=start, stop=stop)

    def fork(self, name, child):
        parent = self.texts[name]
        table = self.manager.fork(parent.table)
        self.texts[child] = SimpleNamespace(
            table=table if isinstance(table, list) else [],
            tokens=list(parent.tokens), computed=parent.computed, adapter=parent.adapter,
        )  # fmt: skip
        self.note("fork", name, child=child, same=table is parent.table)

    def end(self, name):
        text = self.texts.pop(name)
        before = list(text.table)
        self.manager.release(text.table)
        self.note("release", name, before=before, after=list(text.table))


# --- the scheduler's step


class OurManager:
    """Counts blocks. A text whose first token is in `known` has so many tokens known; a start in
    `copying` asks for a copy."""

    def __init__(self, num_blocks, size, known, copying):
        self.free, self.size, self.known, self.copying = num_blocks, size, known, copying
        self.asked = []

    def blocks(self, tokens):
        return -(-tokens // self.size)

    def admit(self, tokens, most, adapter=None):
        known = min(self.known.get(tokens[0], 0), (len(tokens) - 1) // self.size * self.size)
        needed = self.blocks(min(len(tokens), known + most))
        self.asked.append((tokens[0], most, adapter))
        if needed > self.free:
            return None
        self.free -= needed
        return [0] * needed, known

    def grow(self, table, start, stop):
        missing = max(0, self.blocks(stop) - len(table))
        if missing > self.free:
            return None
        self.free -= missing
        table += [0] * missing
        return [(start, 1000 + start)] if start in self.copying else []

    def release(self, table):
        self.free += len(table)
        table.clear()


def served(f, cases):
    """cases: dicts of `Case`'s arguments; a list of what each step has done."""
    return [one_service(f, **case) for case in cases]


def one_service(
    f, num_blocks, size, budgets, most_running, arrivals, known=(), copying=(), gains=(), steps=60
):
    """arrivals: (step, name, prompt's length, answer's length, adapter), name a whole number;
    gains: (name, how many tokens it gets where others get one)."""
    gains = dict(gains)
    manager = OurManager(num_blocks, size, dict(known), set(copying))
    running, waiting, notes = [], deque(), []
    for step in range(steps):
        for when, name, length, wanted, adapter in arrivals:
            if when == step:
                tokens = [name] + [0] * (length - 1)
                waiting.append(
                    SimpleNamespace(
                        name=name, tokens=tokens, computed=0, table=[], adapter=adapter,
                        wanted=wanted, preemptions=0,
                    )
                )  # fmt: skip
        if not running and not waiting:
            if step > max(when for when, *_ in arrivals):
                break
            continue
        budget = budgets[step % len(budgets)]
        manager.asked.clear()
        work, copies = f(running, waiting, manager, budget, most_running)
        work = [(request, count) for request, count in work]
        notes.append(
            {
                "work": [(request.name, count) for request, count in work],
                "copies": [tuple(pair) for pair in copies],
                "running": [(r.name, r.computed) for r in running],
                "waiting": [(r.name, r.computed) for r in waiting],
                "asked": list(manager.asked),
                "free": manager.free,
                "budget": budget,
            }
        )
        if not work or not all(type(n) is int and n > 0 for _, n in work):
            break  # nothing will come of it
        for request, count in work:
            request.computed += count
            if request.computed >= len(request.tokens):
                request.tokens += [0] * gains.get(request.name, 1)
                request.wanted -= 1
            if request.wanted == 0 and request in running:
                manager.release(request.table)
                running.remove(request)
    return notes


# --- keys and values in few bits


def cached_in_bits(f, cases):
    """cases: (options, k, v, parts, turns after which it is read): notes of each read.

    All objects are alive at once, and take their parts in turn.
    """
    live = [
        (f(*options), k.split(parts, dim=1), v.split(parts, dim=1), reads, [])
        for options, k, v, parts, reads in cases
    ]
    for turn in range(max(len(case[3]) for case in cases)):
        for kept, ks, vs, reads, notes in live:
            if turn < len(ks):
                notes.append(one_part(kept, ks[turn], vs[turn], turn in reads))
    return [[last_look(*note) for note in case[-1]] for case in live]


def one_part(kept, k, v, read):
    given = k.clone(), v.clone()
    kept.append(*given)
    same = torch.equal(given[0], k) and torch.equal(given[1], v)
    for tensor in given:
        tensor.fill_(torch.nan)  # they are the caller's
    result = kept.read() if read else None
    return same, result, fresh(result)


def last_look(same, result, early):
    """early: as it was when it came."""
    return {"unchanged": same, "read": early, "later": fresh(result)}


def held_in_bits(f, options, k, v, parts):
    """Bytes of all tensors that are alive because of it, before and after it is read."""
    made = Alive()
    with made:
        kept = f(*options)
        for one, other in zip(k.split(parts, dim=1), v.split(parts, dim=1)):
            kept.append(one.clone(), other.clone())
        before = made.nbytes()
        kept.read()
        after = made.nbytes()
    return {"bytes": before, "after": after}
