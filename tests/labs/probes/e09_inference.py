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
        self.size, self.rows = size, dict.fromkeys("qkvo", 0)
        for name, weight in zip("qkvo", weights):
            linear = nn.Linear(*reversed(weight.shape), bias=False, dtype=weight.dtype)
            linear.weight = nn.Parameter(weight.clone(), requires_grad=False)
            linear.register_forward_pre_hook(self.note(name))
            setattr(self, name, linear)

    def note(self, name):
        def count(module, arguments):
            self.rows[name] += arguments[0].shape[:-1].numel()

        return count

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
    layer, turns, dtypes = Layer(weights, size), [], set()

    def rope(z, positions):
        turns.append(z.shape[1])
        dtypes.add(str(positions.dtype))
        return turned(z, positions)

    shape = (len(x), kv_heads, room, size)
    keys, values = (torch.full(shape, torch.nan, dtype=x.dtype) for _ in range(2))
    outs, length, same = [], 0, True
    for part in x.split(parts, dim=1):
        given = part.clone()
        outs.append(fresh(f(layer, given, rope, keys, values, length)))
        same = same and torch.equal(given, part)
        length += part.shape[1]
    results = {"keys": keys, "values": values, "outs": outs}
    return {
        "results": results, "unchanged": same, "turned": sum(turns), "dtypes": sorted(dtypes),
        "projected": layer.rows,
    }  # fmt: skip


# --- the pool


def pooled(f, scripts):
    """scripts: (num_blocks, operations); an operation may name a block that an earlier `take` gave."""
    return [PoolScript(f(size), operations).notes for size, operations in scripts]


class PoolScript:
    """What each operation gave, in words that no choice among blocks without a key changes."""

    def __init__(self, pool, operations):
        self.pool, self.taken, self.keys, self.notes = pool, {}, {}, []  # keys: block -> its key
        self.note("at first", None)
        for kind, *what in operations:
            gave = self.step(kind, *what)
            self.note(f"{kind} {what}", gave)
            if kind in ("take", "again") and what[-1] not in self.taken:
                break

    def step(self, kind, name, other=None):
        if kind == "take":
            block = self.pool.take()
            gave = self.shown(block, is_new=True)
            self.keys.pop(block, None)
            self.own(name, block)
            return gave
        if kind in ("find", "again"):
            block = self.pool.find(name)
            if kind == "again" and isinstance(block, int):  # what was found is held again
                self.pool.hold(block)
                self.own(other, block)
            return self.shown(block)
        block = self.taken[name]
        if kind == "name":
            self.pool.name(block, other)
            self.keys[block] = other
        else:
            getattr(self.pool, kind)(block)
        return None

    def own(self, name, block):
        if isinstance(block, int):
            self.taken = {n: b for n, b in self.taken.items() if b != block} | {name: block}

    def shown(self, block, is_new=False):
        if not isinstance(block, int):
            return repr(block)
        held = self.pool.refs[block] - is_new
        key = f"the key {self.keys[block]!r}" if block in self.keys else "no key"
        return f"a block with {key}" + (f", held {held} times" if held else "")

    def note(self, call, gave):
        refs = {name: self.pool.refs[block] for name, block in self.taken.items()}
        self.notes.append({
            "call": call, "gave": gave, "refs": refs, "the sum of refs": sum(self.pool.refs),
            "blocks": len(self.pool.refs), "available()": self.pool.available(),
        })  # fmt: skip


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
    """Lines run and numbers compared in all of its calls, in pools so large."""
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
        pool.find(("key", int(block)))
        pool.hold(block)
        pool.drop(block)
        pool.available()
    block = pool.take()
    pool.name(block, "new")
    pool.drop(block)
    sys.settrace(before)
    return len(Compared.seen)


# --- the block manager


class OurPool:
    """The exercise's seven names. Of free blocks with a key the one named first is taken first:
    in whichever order a manager holds and drops, the same are left."""

    def __init__(self, num_blocks):
        self.refs = [0] * num_blocks
        self._keys, self._dropped = {}, []  # block -> key, in the order of naming

    def available(self):
        return self.refs.count(0)

    def take(self):
        free = [block for block, count in enumerate(self.refs) if not count]
        bare = [block for block in free if block not in self._keys]
        block = next((block for block in (*bare, *self._keys) if block in free), None)
        if block is not None:
            self._keys.pop(block, None)
            self.refs[block] = 1
        return block

    def _is_one(self, block):
        if block is None:
            raise ValueError("a table has None for a block: `take` gave it, for none was free")

    def name(self, block, key):
        self._is_one(block)
        self._keys[block] = key

    def find(self, key):
        return next((block for block, own in self._keys.items() if own == key), None)

    def hold(self, block):
        self._is_one(block)
        self.refs[block] += 1

    def drop(self, block):
        self._is_one(block)
        if self.refs[block] < 1:
            raise ValueError(f"block {block} is dropped, and nobody holds it")
        self._dropped.append(block)
        self.refs[block] -= 1


def managed(f, scripts):
    """scripts: (num_blocks, size, operations[, whether the order of a release is noted])."""
    return [Traffic(f, *script).notes for script in scripts]


def longest_key(f, script):
    """Characters of the longest key, written out."""
    return max(len(repr(key)) for key in Traffic(f, *script).numbers)


class Traffic:
    """Texts over a manager, and notes in which blocks have the numbers of their order in the tables.

    ("admit", name, tokens, most, adapter)    and computes what it has got room for; with a number
                                              behind, so many of its tokens only
    ("go", name, count, more)                 more tokens at its end, then so many computed
    ("fork", name, child)   ("end", name)
    """

    def __init__(self, f, num_blocks, size, operations, in_order=False):
        self.pool, self.in_order = OurPool(num_blocks), in_order
        self.manager = f(self.pool, size)
        self.texts, self.notes, self.numbers = {}, [], {}  # key -> its number, in order of naming
        for kind, name, *what in operations:
            if kind == "admit" or name in self.texts:
                getattr(self, kind)(name, *what)

    def note(self, call, copies=(), **more):
        blocks = [block for text in self.texts.values() for block in text.table]
        at = {block: number for number, block in enumerate(dict.fromkeys(blocks))}
        for block in at:
            self.pool._is_one(block)
        found = {
            f"key {self.numbers.setdefault(key, len(self.numbers))}": at.get(block, "free")
            for block, key in self.pool._keys.items()
        }
        self.notes.append({
            "call": call, **more,
            "copies": copies and sorted([at.get(block, "free") for block in pair] for pair in copies),
            "tables": {str(n): [at[b] for b in text.table] for n, text in self.texts.items()},
            "refs": [self.pool.refs[block] for block in at],
            "blocks held in no table": self.pool.available() + len(at) - len(self.pool.refs),
            "what each key finds": found,
        })  # fmt: skip

    def admit(self, name, tokens, most, adapter, done=None):
        got = self.manager.admit(list(tokens), most, adapter)
        call = f"admit({len(tokens)} tokens, {most}) of {name}"
        match got:
            case [list() as table, int() as known]:
                text = SimpleNamespace(
                    table=table, tokens=list(tokens), computed=known, adapter=adapter
                )
                self.texts[name] = text
                self.note(call, known=known)
                self.written(name, min(len(tokens), known + (most if done is None else done)))
            case _:
                self.note(call, known=None if got is None else repr(got)[:80])

    def go(self, name, count, more):
        text = self.texts[name]
        text.tokens += more
        stop = min(len(text.tokens), text.computed + count)
        if stop > text.computed:
            copies = self.manager.grow(text.table, text.computed, stop)
            self.note(f"grow({text.computed}, {stop}) of {name}", copies)
            if copies is not None:
                self.written(name, stop)

    def written(self, name, stop):
        text = self.texts[name]
        text.computed = stop
        self.manager.commit(text.table, list(text.tokens), stop, text.adapter)
        self.note(f"commit({stop}) of {name}")

    def fork(self, name, child):
        parent = self.texts[name]
        table = self.manager.fork(parent.table)
        own = {"tokens": list(parent.tokens), "computed": parent.computed}
        self.texts[child] = SimpleNamespace(table=table, adapter=parent.adapter, **own)
        self.note(f"fork of {name} as {child}", is_own=table is not parent.table)

    def end(self, name):
        text = self.texts.pop(name)
        before = list(text.table)
        self.pool._dropped.clear()
        self.manager.release(text.table)
        dropped = [before.index(block) for block in self.pool._dropped if block in before]
        dropped = dropped if self.in_order else sorted(dropped)
        self.note(f"release of {name}", left=list(text.table), dropped=dropped)


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
                "free blocks": manager.free,
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
                given = ks[turn].clone(), vs[turn].clone()
                kept.append(*given)
                same = torch.equal(given[0], ks[turn]) and torch.equal(given[1], vs[turn])
                for tensor in given:
                    tensor.fill_(torch.nan)  # they are the caller's
                if turn in reads:
                    result = kept.read()
                    notes.append({"unchanged": same, "read": fresh(result), "later": result})
    return [notes for *_, notes in live]


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
