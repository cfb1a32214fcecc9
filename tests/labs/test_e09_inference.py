"""The checks of lab e09: an engine's parts, graded on who holds, computes and draws what."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import ClassVar

import torch

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import cause, variant
from minitrain.words import plural

from .probes import e09_inference as probes

LAB = "e09_inference"
SIZES = {
    "cpu": {
        "width": 64, "layers": 2, "length": 96, "corpus": 600_000, "steps": 250, "wide": 384,
        "wide_layers": 4, "repeats": 5, "texts": 48, "new": 28, "requests": 24, "long": 1500,
        "judged": 40,
    },
    "test": {
        "width": 48, "length": 64, "corpus": 250_000, "steps": 80, "wide": 256, "wide_layers": 3,
        "repeats": 3, "texts": 12, "requests": 16, "long": 800, "judged": 10,
    },
}  # fmt: skip
REVEALS = {
    "wasted": Reveal("measured", "percent of rows of 2,048 that are empty, over all moments"),
    "idle": Reveal("computed", "percent of the static batches' row steps that are for nobody"),
    "pause": Reveal("measured", "99th percentile between tokens, one step over a budget of 64"),
}
HIDDEN = (
    "minitrain/inference/plain/reference.py",
    "minitrain/inference/plain/loop.py",
    *(f"minitrain/inference/{name}.py" for name in ("sampling", "forward")),
    *(f"minitrain/inference/cache/{name}.py" for name in ("blocks", "dense", "paged")),
    *(f"minitrain/inference/cache/{name}.py" for name in ("quantized", "ring")),
    "minitrain/inference/engine/scheduler.py",
)


def drawn_random():
    """Python's generator, seeded from torch's, which the grader draws anew for each check."""
    return Random(int(torch.randint(2**31, ())))


def follow(item, submission, probe, scripts, told):
    """Note by note, as the reference's; `told`: of the script, in words, and of its notes' parts."""
    got, want = submission.run(probe, scripts), probe(variant(item.reference), scripts)
    why = cause(got, item.reference, item.MISTAKES, lambda f: probe(f, scripts))
    for script, notes, right in zip(scripts, got, want):
        for number, (note, ours) in enumerate(zip(notes, right), 1):
            for part, value in ours.items():
                what = f"{told(script)}, {ours.get('call', 'step')} ({number}): {part}"
                words = why or item.RULES.get(part, "")
                hints = [(note[part], words)] if words else []
                expect.equal(note[part], value, what=what, hints=hints)
        expect.equal(len(notes), len(right), what=f"{told(script)}: steps until all is done")


# --- sample


DRAWS = 2500
FAR = 0.09  # between the right shares and any mistake's
CALLERS = "logits were changed: they are the caller's"
DRAW = "int(order[torch.multinomial(p, 1, generator=request.generator)])"
SHARES = "torch.zeros_like(row).scatter(0, order[: len(p)], p / p.sum())"
SCALE, CUT = "(row / request.temperature)", "p * (p.cumsum(0) - p < request.top_p)"
TIMES, UNSCALED = (SCALE, "(row * request.temperature)"), (SCALE, "row")
P_FIRST = ("ordered[: request.top_k].softmax(dim=0)", "ordered.softmax(dim=0)[: request.top_k]")
SHORT = (CUT, "p * (p.cumsum(0) < request.top_p)")
LATE = (*UNSCALED, CUT, f"({CUT}) ** (1 / request.temperature)")


class TestSample(Exercise):
    """A token for each request"""

    name = "sample"
    reference = "minitrain.inference.plain.reference:sample"
    hidden = HIDDEN
    MISTAKES = (
        (TIMES, "the logits were multiplied by the temperature: they are divided by it"),
        (UNSCALED, "the temperature was left out"),
        (P_FIRST, "top-p was counted before top-k: it goes through what top-k has left, scaled to a sum of 1"),
        (SHORT, "the token that crosses p was cut off: it stays, so that at least one is left"),
        (LATE, "the temperature comes first: top-p counts probabilities that it has made"),
    )  # fmt: skip

    def shares(self, z, settings, *edits):
        """(V,) float64: the probabilities, from the reference's last step but the draw."""
        temperature, top_k, top_p = settings
        asked = SimpleNamespace(temperature=temperature, top_k=top_k, top_p=top_p)
        return variant(self.reference, *edits, DRAW, SHARES)(z.double()[None], [asked])[0]

    def logits(self, settings, mistakes):
        """(V,): no cut is a matter of rounding, and each of the mistakes is seen."""
        while True:
            z = 3 * torch.rand(7)
            right = self.shares(z, settings)
            sums = right.sort(descending=True).values.cumsum(0)
            wrong = [self.shares(z, settings, *edits) for edits in mistakes]
            is_far = all((right - one).abs().nan_to_num(1).max() > FAR for one in wrong)
            is_clear = settings[2] is None or (sums - settings[2]).abs().min() > 0.01
            if is_far and is_clear and right[right > 0].min() > 0.02:
                return z

    def answers(self, submission, batches):
        """Of each batch: tokens of all turns, a list of ints each, and which generators moved."""
        got = submission.run(probes.sampled, batches)
        for one, (logits, requests, _) in zip(got, batches):
            for tokens in one["tokens"]:
                expect.that(
                    isinstance(tokens, (list, tuple)) and len(tokens) == len(requests),
                    f"got {expect.show(tokens)}, expected a list of {len(requests)} ints",
                )
                odd = [token for token in tokens if type(token) is not int]
                words = f"a token is {odd and expect.show(odd[0])}, expected a Python int: `int(…)`"
                expect.that(not odd, words)
                best = logits.argmax(1).tolist()
                greedy = [row for row, (t, *_) in enumerate(requests) if t == 0]
                what = "tokens of greedy requests"
                expect.equal([tokens[r] for r in greedy], [best[r] for r in greedy], what=what)
            words = "torch's global generator was used: give `generator=request.generator` to what draws"
            expect.that(one["everybody"], words)
            expect.that(one["unchanged"], CALLERS)
        return got

    def are_drawn(self, submission, cases):
        """cases: (settings, mistakes to be seen); the cause is that of all."""
        drawn = [(self.logits(*case), case[0]) for case in cases]
        batches = [
            (z.expand(DRAWS, -1).clone(), [(*s, int(torch.randint(2**40, ()))) for _ in range(DRAWS)], 1)
            for z, s in drawn
        ]  # fmt: skip
        got = [
            torch.bincount(torch.tensor(one["tokens"][0]), minlength=7).double() / DRAWS
            for one in self.answers(submission, batches)
        ]

        def fit(*edits):
            ways = [self.shares(*case, *edits) for case in drawn]
            far = [5 * (p * (1 - p) / DRAWS).sqrt() + 1e-9 for p in ways]
            return [bool(((a - p).abs() <= e).all()) for a, p, e in zip(got, ways, far)]

        why = expect.first((all(fit(*edits)), words) for edits, words in self.MISTAKES)
        for fits, shares, (z, settings) in zip(fit(), got, drawn):
            digits = [
                ", ".join(f"{share:.3g}" for share in one)
                for one in (shares.tolist(), self.shares(z, settings).tolist())
            ]
            expect.that(
                fits,
                "temperature {:g}, top_k {}, top_p {}: of {} tokens the shares are {}, and the "
                "probabilities {}\n{}".format(*settings, DRAWS, *digits, why),
            )

    @check(points=2, title="the temperature; 0 takes the likeliest and draws nothing")
    def test_temperature(self, submission):
        hot = 0.5 if torch.rand(()) < 0.5 else 1.7
        self.are_drawn(submission, [((hot, None, None), (TIMES, UNSCALED))])
        asked = [(0.0, k, p, 5) for k, p in ((None, None), (3, 0.5)) for _ in range(3)]
        (got,) = self.answers(submission, [(torch.randn(6, 40), asked, 2)])
        words = "a greedy request has drawn from its generator: the likeliest token needs no draw"
        expect.that(not any(got["moved"]), words)

    @check(points=3, title="top-k, then top-p of what is left; the token that crosses p stays")
    def test_cuts(self, submission):
        cases = [
            ((1.0, 3, None), ()),
            ((1.0, None, 0.6), (SHORT,)),
            ((1.0, 4, 0.7), (P_FIRST, SHORT)),
            ((2.5, None, 0.7), (LATE, UNSCALED)),
        ]
        self.are_drawn(submission, cases)
        one = [(1.0, 1, None, 1), (1.0, 50, 1e-9, 2), (0.7, 5, 1e-6, 3), (0.001, None, None, 4)]
        logits = torch.stack([torch.randperm(5) for _ in one]).float()
        (got,) = self.answers(submission, [(logits, one, 1)])
        what = "tokens where only the likeliest is left (top_k 1, top_p near 0, temperature near 0)"
        expect.equal(got["tokens"][0], logits.argmax(1).tolist(), what=what)

    @check(points=4, title="a request's tokens depend on its own generator, and on nobody else")
    def test_own_generator(self, submission):
        settings = [(1.0, None, None), (0.8, 90, None), (0.0, None, None), (1.2, None, 0.95)]
        settings += [(1.0, 200, 0.9), (1.0, None, None)]
        asked = [(*setting, int(torch.randint(2**40, ()))) for setting in settings]
        logits, order = torch.randn(6, 300), torch.randperm(6).tolist()
        alone = [(logits[i : i + 1], asked[i : i + 1], 8) for i in range(6)]
        turned = (logits[order], [asked[i] for i in order], 8)
        batches = [*alone, (logits, asked, 8), turned, (logits[1:4], asked[1:4], 8)]
        got = self.answers(submission, [*batches, (logits[:0], [], 1)])
        own = [[tokens[0] for tokens in one["tokens"]] for one in got[:6]]
        batch, mixed, some = (list(zip(*one["tokens"])) for one in got[6:9])
        for i, (temperature, *_) in enumerate(settings):
            is_new = got[i]["moved"][0] and got[6]["moved"][i] and len(set(own[i])) > 1
            expect.that(
                is_new or temperature == 0,
                f"request {i}, alone, got {own[i]} in eight turns with the same logits, or its "
                "generator has not moved, alone or in a batch of six: each request draws from its "
                "own generator, itself, so that it goes on from turn to turn",
            )
        for i in range(6):
            found = [batch[i], mixed[order.index(i)], *(some[i - 1 : i] if 0 < i < 4 else [])]
            expect.that(
                all(list(tokens) == own[i] for tokens in found),
                f"request {i} got {own[i]} alone and {found} in batches: whoever else is in the batch "
                "must not matter, neither their temperature, top_k and top_p nor their draws. Cut "
                "by its own settings, and draw for it from its own generator alone, as for one",
            )


# --- cached_attention


SEEN = "positions[:, None] >= torch.arange(end)"
HERE = "positions = torch.arange(length, end)"
CACHED = "        keys[:, :, :end],\n        values[:, :, :end],\n"
TILED = CACHED.replace(":end],", ":end].repeat(1, q.shape[2] // k.shape[2], 1, 1),")
HOLES = (
    "it has NaN: what lies behind the new tokens was read, and masked or not 0 · NaN is NaN, or a "
    "token reads no place, where each reads all up to its own, and its own"
)


class TestCachedAttention(Exercise):
    """Attention over what is kept"""

    name = "cached_attention"
    reference = "minitrain.inference.plain.reference:cached_attention"
    hidden = HIDDEN
    MISTAKES = (
        ((SEEN, "torch.ones(x.shape[1], end, dtype=torch.bool)"), "a new token has read those behind it: inside a chunk the mask is causal too"),
        ((SEEN, "positions[:, None] - length >= torch.arange(end)"), "the first query was lined up with the first key, as `is_causal=True` does: new token i reads all places up to length + i"),
        ((HERE, "positions = torch.arange(x.shape[1])", SEEN, "torch.arange(length, end)[:, None] >= torch.arange(end)"),
         "positions begin at 0 in every call: the first new token stands at place `length`"),
        (("rope(k, positions)", "k"), "keys are kept unturned: turn a key before it is kept, and never again"),
        ((CACHED, TILED), "a query head has read another one's keys: query head h reads h // (H/K), so `repeat_interleave`, or `enable_gqa=True`"),
    )  # fmt: skip

    def draw(self, texts, parts, heads, kv_heads, size, dtype=torch.float64, room=5):
        width, count = heads * size + 2, sum(parts)
        shapes = [(heads * size, width), *[(kv_heads * size, width)] * 2, (width, heads * size)]
        weights = [torch.randn(shape, dtype=dtype) / width**0.5 for shape in shapes]
        weights[0] *= 3
        x = torch.randn(texts, count, width, dtype=dtype)
        return weights, size, x, list(parts), count + room, kv_heads

    def compare(self, submission, cases):
        """Outputs, and all of keys and values; each token projected and turned once."""
        got = submission.run(probes.read_in_parts, cases)
        for case, one, want in zip(
            cases, got, probes.read_in_parts(variant(self.reference), cases)
        ):
            weights, size, x, parts, _, kv_heads = case
            told = (
                f"{plural(len(x), 'text')} in parts of {parts}, {len(weights[0]) // size} heads, "
            )
            told += f"{kv_heads} of keys, {x.dtype}"
            again = lambda f, c=case: probes.read_in_parts(f, [c])[0]["results"]  # noqa: E731
            results = dict(one["results"])
            why = cause(results, self.reference, self.MISTAKES, again)
            holes = any(out.isnan().any() for out in results["outs"] if torch.is_tensor(out))
            for part, value in want["results"].items():
                words = HOLES if part == "outs" and holes else why
                hints = [(results[part], words)] if words else []
                expect.equal(results[part], value, what=f"{told}: {part}", hints=hints)
            expect.that(one["unchanged"], "x was changed: it is the caller's")
        return got

    @check(
        points=3, title="a whole prompt at once: turned keys and values kept, and causal attention"
    )
    def test_prompt(self, submission):
        cases = [self.draw(1, (6,), 2, 2, 4), self.draw(3, (1,), 2, 2, 4)]
        self.compare(submission, [*cases, self.draw(2, (9,), 3, 3, 2, torch.float32)])

    @check(points=4, title="in parts, and one by one: as at once")
    def test_parts(self, submission):
        draw = drawn_random()
        parts = [draw.randrange(1, 5) for _ in range(4)]
        cases = [
            self.draw(1, (4, 1, 1, 1), 2, 2, 4),
            self.draw(2, parts, 2, 2, 6),
            self.draw(1, (1,) * 6, 1, 1, 4, torch.float32),
            self.draw(2, (2, 5, 3), 3, 3, 4, room=0),
        ]
        self.compare(submission, cases)

    @check(points=3, title="fewer heads of keys; each token is projected and turned once")
    def test_grouped(self, submission):
        cases = [
            self.draw(2, (3, 1, 4), 4, 2, 4),
            self.draw(1, (5, 2), 6, 1, 2),
            self.draw(3, (2, 1), 6, 3, 4),
        ]
        for case, one in zip(cases, self.compare(submission, cases)):
            texts, count = len(case[2]), sum(case[3])
            for name, rows in one["projected"].items():
                expect.that(
                    rows == texts * count,
                    f"layer.{name} was called with {rows / texts:g} tokens a text, and the text has "
                    f"{count}: call layer.{name}(…) on each token once",
                )
            expect.that(
                one["turned"] <= 2 * count,
                f"rope was given {one['turned']} tokens, in parts of {case[3]}: of each of the {count} "
                f"tokens one query and one key are turned, once ({texts} texts)",
            )
            words = f"rope was given positions in {one['dtypes']}: they are int64"
            expect.that(one["dtypes"] == ["torch.int64"], words)


# --- Pool


class TestPool(Exercise):
    """Blocks, counted and found"""

    name = "Pool"
    reference = "minitrain.inference.plain.reference:Pool"
    hidden = HIDDEN
    MISTAKES = (
        (("            if block not in self.keys:  # nothing is lost with it\n                self.free.move_to_end(block, last=False)\n", ""),
         "a block without a key goes first: nothing is lost with it"),
        (("        if block in self.keys:\n            del self.found[self.keys.pop(block)]\n", ""), "a block that is taken is for other content: its old key must be forgotten then"),
        (("return self.found.get(key)", "return self.found.get(key) or None"), "0 is a block as any other: only `None` says that there is none"),
        (("        if self.refs[block] == 0:\n            del self.free[block]\n", ""), "`hold` must take a block out that was free"),
        (("block not in self.keys:", "self.found.pop(self.keys.pop(block, None), 0) is not None:"), "a block keeps its key when nobody holds it, until it is taken"),
    )  # fmt: skip
    RULES: ClassVar = {
        "gave": "`take`: one without a key, or else the one free for the longest time, and a block that was held again begins anew. `find`: held or free, until it is taken; it holds nothing and changes no order",
        "refs": "`refs[block]` is how many texts hold it: `take` makes it 1, `hold` one more, `drop` one less",
    }  # fmt: skip

    def follow(self, submission, *scripts):
        follow(self, submission, probes.pooled, scripts, lambda s: plural(s[0], "block"))

    @check(points=2, title="counts: what is held is never given out")
    def test_counts(self, submission):
        few = [("take", "a"), ("take", "b"), ("hold", "a"), ("drop", "a"), ("take", "c"), ("take", "d"),
               ("drop", "b"), ("take", "e"), ("take", "f"), ("drop", "a"), ("drop", "c"),
               ("take", "g"), ("take", "h"), ("take", "i")]  # fmt: skip
        one = [("take", "a"), ("take", "b"), ("drop", "a"), ("take", "c")]
        self.follow(submission, (3, few), (1, one))

    @check(points=2, title="keys: found when free, held again, forgotten when taken")
    def test_keys(self, submission):
        operations = [
            ("take", "a"), ("find", "k"), ("name", "a", "k"), ("find", "k"), ("take", "b"),
            ("name", "b", (1, "x")), ("drop", "a"), ("find", "k"), ("again", "k", "c"), ("drop", "b"),
            ("take", "d"), ("find", "k"), ("find", (1, "x")), ("drop", "c"), ("take", "e"), ("find", "k"),
            ("name", "e", "k"), ("find", "k"), ("drop", "d"), ("drop", "e"), ("find", "k"),
        ]  # fmt: skip
        zero = [("take", "a"), ("name", "a", 0), ("drop", "a"), ("again", 0, "b"), ("take", "c"), ("drop", "b"),
                ("take", "d"), ("find", 0)]  # fmt: skip
        self.follow(submission, (2, operations), (1, zero), (2, zero))

    @check(points=3, title="order: first without a key, then free for the longest time")
    def test_order(self, submission):
        draw = drawn_random()
        names = "abcdef"
        order = draw.sample(names, 6)
        take = [("take", n) for n in names]
        fill = take + [("name", n, f"key {n}") for n in names]
        dropped = [("drop", n) for n in order]
        takes = [("take", str(k)) for k in range(6)]
        lru = [*fill, *dropped, ("again", f"key {order[0]}", "z"), ("drop", "z"), *takes]
        bare = [*take, *[("name", n, f"key {n}") for n in order[:3]]]
        bare += [("drop", n) for n in draw.sample(names, 6)] + takes
        again = [*fill, *dropped, *[("again", f"key {n}", n.upper()) for n in order[2:4]]]
        again += [*takes[:2], *[("drop", n.upper()) for n in order[2:4]], *takes[2:]]
        looked = [*fill, *dropped, ("find", f"key {order[0]}"), *takes]
        every = [lru, bare, again, [*fill, *dropped, *takes], looked]
        self.follow(submission, *((6, operations) for operations in every))

    @check(points=1, title="random traffic")
    def test_traffic(self, submission):
        self.follow(submission, *((size, self.traffic(size, drawn_random())) for size in (1, 4, 9)))

    def traffic(self, size, draw):
        """Operations that are right whichever blocks `take` gives: by counts and keys alone."""
        operations, held, keys = [], {}, {}
        for turn in range(150):
            kind = draw.choice(["take", "take", "drop", "drop", "drop", "hold", "name", "find"])
            free = size - len(held)
            if kind == "take" and (free > 0 or draw.random() < 0.2):
                operations.append(("take", turn))
                if free > 0:
                    held[turn] = 1
            elif held and kind in ("drop", "hold"):
                name = draw.choice(list(held))
                operations.append((kind, name))
                held[name] += 1 if kind == "hold" else -1
                if not held[name]:
                    del held[name]
            elif held and kind == "name":
                name = draw.choice(list(held))
                if name not in keys:
                    keys[name] = ("content", name)
                    operations.append(("name", name, keys[name]))
            elif keys:
                operations.append(("find", draw.choice(list(keys.values()))))
        return operations

    @check(points=1, title="no search: as fast with 100,000 blocks as with 1,000")
    def test_speed(self, submission):
        small, large = submission.run(probes.steps_of, [1000, 100_000])
        expect.that(
            large < 2 * small + 1000,
            f"the same calls took {small:,} steps in a pool of 1,000 blocks and {large:,} in one of "
            "100,000: something searches through the blocks. An OrderedDict finds any of them at once",
        )


# --- BlockManager


class TestBlockManager(Exercise):
    """Tables that share blocks"""

    name = "BlockManager"
    reference = "minitrain.inference.plain.reference:BlockManager"
    hidden = HIDDEN
    MISTAKES = (
        (("parent = digest(parent, tokens", "parent = digest(adapter, tokens", "key = digest(parent, tokens", "key = digest(adapter, tokens"),
         "equal tokens have got one key, whatever stands before them: a key is made of the tokens and of the key of the block before"),
        (("parent = adapter\n        for start", "parent = None\n        for start", "parent = adapter\n        for index", "parent = None\n        for index"),
         "the adapter belongs into the chain of keys, as its first link"),
        (("len(tokens) - self.size, self.size)", "len(tokens) - self.size + 1, self.size)"), "the last token is always computed, for its logits are wanted: its block is never known"),
        (("self.pool.refs[table[index]] > 1", "False"), "a block that others hold was written into: copy on write, the writer gets a block of its own"),
        (("            self.key_of.pop(block, None)  # its old content is gone\n", "            pass\n"), "a block that is taken anew has lost its own key, also one for a copy"),
    )  # fmt: skip
    RULES: ClassVar = {
        "known": "known are whole blocks that can be found by the keys that `commit` has made, as far as the chain goes, and the block of the last token is none of them. None only where blocks are missing, counted without those that the text itself will hold",
        "copies": "(from, to) of each block that is written and that others hold. None only where blocks are missing: count first, take then",
        "tables": "a table has room for what is known and will be written, and no more; where its text has ended it is empty, and a fork has a list of its own",
        "refs": "each text holds each block of its table once, and gives it back once; nothing else is held. Where blocks are missing nothing changes",
        "what each key finds": "only full blocks of computed tokens, each content once, under a key of all before it and the adapter; where a block has none, for another has its content, the chain goes on behind it. Where blocks are missing nothing changes",
        "dropped": "the tail first, for nothing finds a tail whose beginning was taken",
    }  # fmt: skip
    NAMED_LATE = ("if block not in self.key_of:", "if True:")  # as good: a twin of what was evicted

    def follow(self, submission, scripts):
        told = {
            "nobody holds": "a block was given back more often than it was held: each text that uses a block "
            "holds it, one that was found or forked too, and gives it back once",
            "has None for a block": "count the free blocks first, without those that the text itself will hold",
        }
        with expect.because(told):
            follow(self, submission, probes.managed, scripts, lambda s: f"blocks of {s[1]}")

    def tokens(self, count):
        return torch.randint(10_000, (count,)).tolist()

    @check(
        points=2,
        title="a text alone: room as it grows, all given back, None where blocks are missing",
    )
    def test_alone(self, submission):
        go = [("go", "a", 1, self.tokens(1)) for _ in range(9)]
        alone = [("admit", "a", self.tokens(6), 99, None), *go, ("end", "a")]
        chunks = [("admit", "a", self.tokens(11), 4, None), ("go", "a", 3, []), ("go", "a", 5, [])]
        full = [("admit", "a", self.tokens(8), 99, None), ("admit", "b", self.tokens(9), 99, None),
                ("admit", "c", self.tokens(3), 2, None), ("go", "a", 1, self.tokens(1)),
                ("go", "c", 2, self.tokens(1)), ("go", "a", 1, []), ("end", "c"), ("go", "a", 5, self.tokens(1)),
                ("end", "a")]  # fmt: skip
        scripts = [(5, 4, alone), (3, 4, [*chunks, ("end", "a")]), (3, 4, full), (12, 1, full)]
        self.follow(submission, scripts)

    @check(points=3, title="a known beginning is found, in full blocks, never its last token")
    def test_prefix(self, submission):
        one, rest = self.tokens(12), self.tokens(5)
        same = [("admit", "a", one, 99, None), ("admit", "b", one, 99, None),
                ("admit", "c", one[:8] + rest, 99, None), ("admit", "d", one[:7], 99, None),
                ("end", "a"), ("end", "b"), ("end", "c"), ("end", "d"),
                ("admit", "e", one + rest, 99, None), ("admit", "f", one[:9], 1, None)]  # fmt: skip
        grown = [("admit", "a", one[:5], 99, None), ("go", "a", 1, one[5:6]), ("go", "a", 1, one[6:7]),
                 ("admit", "b", one[:10], 99, None), ("go", "a", 1, one[7:8]), ("admit", "c", one[:10], 99, None),
                 ("end", "a"), ("end", "b"), ("end", "c"), ("admit", "d", one, 3, None)]  # fmt: skip
        late = [("admit", "a", one, 3, None), ("admit", "b", one, 99, None), ("go", "a", 4, []),
                ("admit", "c", one, 99, None), ("go", "a", 99, []), ("admit", "d", one, 99, None)]  # fmt: skip
        asleep = [("admit", "a", one[:9], 99, None), ("end", "a"), ("admit", "b", one[:8] + self.tokens(9), 99, None),
                  ("admit", "c", one[:5], 99, None)]  # fmt: skip
        twin = [("admit", "a", one[:8] + self.tokens(5), 3, None), ("admit", "b", one, 99, None),
                ("go", "a", 99, []), ("end", "a"), ("end", "b")]  # fmt: skip
        scripts = [(20, 4, ops) for ops in (twin, same, grown, late)]
        self.follow(submission, [*scripts, (40, 1, same), (20, 3, late), (4, 4, asleep)])

    @check(points=3, title="keys: chained, with the adapter, of full blocks only, and short")
    def test_keys(self, submission):
        a, b, c = self.tokens(4), self.tokens(4), self.tokens(4)
        texts = [a + b + c, c + b + a, b + a + c + a, a + a + a + [1], a + b + a + [2]]
        texts.append(a[::-1] + b + c)
        chain = [("admit", number, text, 99, None) for number, text in enumerate(texts)]
        adapters = [("admit", "a", a + b + c, 99, "x"), ("admit", "b", a + b + c, 99, None),
                    ("admit", "c", a + b + c, 99, "y"), ("admit", "d", a + b + c, 99, "x"),
                    ("end", "a"), ("end", "b"), ("admit", "e", a + b + a, 99, None),
                    ("admit", "f", a + b + c, 99, 0), ("admit", "g", a + b + c, 99, 0)]  # fmt: skip
        long = [("admit", "a", self.tokens(160), 99, None), ("go", "a", 99, []), ("end", "a")]
        scripts = [(30, 4, chain), (30, 4, adapters), (40, 8, long)]
        self.follow(submission, scripts)
        length = submission.run(probes.longest_key, scripts[-1])
        expect.that(
            length <= 300,
            f"a key has {length} characters, written out: it grows with the text. `digest` of the "
            "parent's key and the block's own tokens stays as short as it is",
        )

    @check(points=2, title="two texts of one beginning: who writes gets a copy")
    def test_fork(self, submission):
        tokens = self.tokens(6)
        forked = [("admit", "a", tokens, 99, None), ("fork", "a", "b"), ("fork", "a", "c"),
                  ("go", "b", 1, [1]), ("go", "a", 1, [2]), ("go", "c", 1, [3]), ("go", "b", 1, [4]),
                  ("go", "b", 3, [5, 6, 7]), ("end", "a"), ("go", "c", 1, [8]), ("end", "b"), ("end", "c")]  # fmt: skip
        even = [("admit", "a", tokens[:4], 99, None), ("fork", "a", "b"), ("go", "b", 1, [1]), ("go", "a", 1, [1]),
                ("end", "a"), ("end", "b")]  # fmt: skip
        full = [("admit", "a", tokens, 99, None), ("fork", "a", "b"), ("go", "b", 1, [1]), ("go", "a", 1, [2]),
                ("end", "a"), ("go", "b", 1, []), ("end", "b")]  # fmt: skip
        ahead = [("admit", "a", self.tokens(11), 99, None, 2), ("fork", "a", "b"), ("go", "b", 2, []),
                 ("go", "a", 3, []), ("end", "a"), ("go", "b", 5, []), ("end", "b")]  # fmt: skip
        copied = [("admit", "old", self.tokens(9), 99, None), ("end", "old"), ("admit", "a", self.tokens(6), 99, None),
                  ("fork", "a", "b"), ("go", "b", 1, [1]), ("go", "b", 1, [2]), ("end", "a"), ("end", "b")]  # fmt: skip
        scripts = [(9, 4, forked), (9, 4, even), (2, 4, full), (20, 1, forked), (9, 4, ahead)]
        self.follow(submission, [*scripts, (4, 4, copied)])

    @check(
        points=2,
        title="random traffic in small pools: what is evicted, what is shared, what is lost",
    )
    def test_traffic(self, submission):
        draw, sizes = drawn_random(), ((8, 3), (5, 2), (14, 4), (9, 1), (6, 2), (10, 3))
        scripts = [self.agreed((*size, self.traffic(draw), True)) for size in sizes]
        self.follow(submission, scripts)

    def agreed(self, script):
        """Its beginning on which two right ways are alike."""
        blocks, size, operations, in_order = script
        ways = [variant(self.reference), variant(self.reference, *self.NAMED_LATE)]
        while True:
            script = blocks, size, operations, in_order
            one, other = (probes.managed(way, [script]) for way in ways)
            if one == other:
                return script
            operations = operations[:-3]

    def traffic(self, draw):
        operations, names, old = [], [], [[]]
        for number in range(70):
            if len(names) > 3 or (names and draw.random() < 0.25):
                operations.append(("end", names.pop(draw.randrange(len(names)))))
            if names and draw.random() < 0.15:
                operations.append(("fork", draw.choice(names), number))
                names.append(number)
            elif names and draw.random() < 0.6:
                more = [draw.randrange(5)]
                operations.append(("go", draw.choice(names), draw.choice([1, 1, 2, 9]), more))
            else:
                known = draw.choice(old)
                tokens = known[: draw.randrange(len(known) + 1)] + draw.choices(range(5), k=3)
                old.append([*tokens, draw.randrange(5)])
                most, adapter = draw.choice([1, 4, 99]), draw.choice("xy")
                operations.append(("admit", number, tokens, most, adapter))
                names.append(number)
        return operations


# --- schedule


class TestSchedule(Exercise):
    """One rule for every step"""

    name = "schedule"
    reference = "minitrain.inference.plain.reference:schedule"
    hidden = HIDDEN
    MISTAKES = (
        ((" and not preempted:", ":"), "this step has preempted a request, and then admitted one, or asked for it: the blocks just won are gone again"),
        (("waiting.appendleft(youngest)", "waiting.append(youngest)"), "a preempted request waits in front of all others: it came before them"),
        (("            youngest.computed = 0\n", ""), "a preempted request kept its `computed`: its blocks are gone, so it is 0"),
        (("manager.admit(request.tokens, left,", "manager.admit(request.tokens, len(request.tokens),"), "`admit` is asked for no more than this step computes: what is left of the budget"),
        (("        copies += found\n", ""), "copies that `grow` asked for are missing"),
    )  # fmt: skip
    RULES: ClassVar = {
        "work": "who runs comes first, the oldest first, then who waits, in order; each gets the lesser of what it lacks and what is left of the budget, known tokens cost nothing, and nobody overtakes. Where a block is missing the youngest is preempted, nobody's count is cut, and who is preempted gets none of this step's work",
        "running": "who runs, the oldest first: at most `most_running`, and who is preempted, the youngest each time, runs no more. `computed` is what `admit` says is known",
        "waiting": "who is preempted waits in front of all others, and of two the older in front, with nothing computed",
        "asked": "`admit` is given the first that waits, what is left of the budget and its adapter, as long as there is budget and a free row, and not after its first None",
    }  # fmt: skip

    def follow(self, submission, cases):
        follow(self, submission, probes.served, cases, self.told)

    def told(self, case):
        return f"{case['num_blocks']} blocks of {case['size']}, budgets {case['budgets']}"

    def case(self, num_blocks, size, budgets, most_running, arrivals, **more):
        return {
            "num_blocks": num_blocks, "size": size, "budgets": budgets, "most_running": most_running,
            "arrivals": arrivals, **more,
        }  # fmt: skip

    @check(points=3, title="who runs first, then who waits, within the budget; prompts are cut")
    def test_budget(self, submission):
        prompt = int(torch.randint(11, 19, ()))
        cases = [
            self.case(99, 4, [8], 9, [(0, 1, prompt, 4, None)]),
            self.case(99, 4, [8], 9, [(0, 1, 5, 6, "x"), (1, 2, 9, 3, None), (2, 3, prompt, 2, "y"), (3, 4, 2, 2, None)]),
            self.case(99, 4, [6], 2, [(0, 1, 3, 5, None), (0, 2, 4, 3, None), (0, 3, 2, 3, None), (1, 4, 1, 1, None)]),
            self.case(99, 4, [3, 7, 1, 12], 9, [(0, k, 4 + k, 3, None) for k in range(5)]),
            self.case(99, 4, [4], 9, [(0, 1, 3, 4, None), (0, 2, 2, 4, None), (0, 3, 3, 2, None)], gains=[(1, 4), (2, 3)]),
        ]  # fmt: skip
        self.follow(submission, cases)

    @check(
        points=2, title="what is known is not computed again; copies are handed on; the adapter too"
    )
    def test_known(self, submission):
        arrivals = [(0, 1, 17, 3, "x"), (1, 2, 14, 2, None), (2, 3, 9, 4, "y")]
        cases = [
            self.case(99, 4, [9], 9, arrivals, known=[(1, 8), (2, 12), (3, 99)]),
            self.case(9, 4, [5], 9, arrivals, known=[(1, 4), (3, 8)], copying=range(0, 40, 3)),
            self.case(99, 4, [9], 9, [(0, 1, 17, 3, 0), (0, 2, 5, 2, None)], known=[(1, 12)]),
        ]
        self.follow(submission, cases)

    @check(points=4, title="blocks are missing: the youngest goes, and waits in front")
    def test_preempts(self, submission):
        three = [(0, 1, 4, 9, None), (0, 2, 4, 8, None), (0, 3, 4, 7, None), (1, 4, 3, 3, None)]
        cases = [
            self.case(6, 2, [20], 9, three),
            self.case(7, 2, [20], 9, [*three, (1, 5, 2, 2, None)]),
            self.case(5, 3, [7], 9, three),
            self.case(4, 4, [20], 9, [(0, 1, 3, 12, None), (0, 2, 3, 12, None), (0, 3, 5, 4, None)]),
            self.case(4, 4, [20], 9, [(0, name, 4, 5, None) for name in (1, 2, 3, 4)]),  # two go
            self.case(6, 2, [6], 9, [(0, 1, 2, 6, None), (0, 2, 11, 1, None)]),  # a part of a prompt
        ]  # fmt: skip
        self.follow(submission, cases)

    @check(points=1, title="nobody overtakes")
    def test_order(self, submission):
        cases = [
            self.case(5, 2, [20], 9, [(0, 1, 6, 3, None), (1, 2, 8, 2, None), (1, 3, 1, 2, None), (2, 4, 2, 1, None)]),
            self.case(4, 2, [3], 9, [(0, 1, 4, 2, None), (0, 2, 7, 1, None), (0, 3, 1, 1, None)]),
        ]  # fmt: skip
        self.follow(submission, cases)

    @check(points=2, title="random traffic: everyone ends")
    def test_traffic(self, submission):
        draw = drawn_random()
        cases = []
        for _ in range(6):
            arrivals = [
                (draw.randrange(12), name, draw.randrange(1, 9), draw.randrange(1, 9), draw.choice("xy"))
                for name in range(1, 9)
            ]  # fmt: skip
            size, budgets = draw.choice([1, 2, 4]), [draw.randrange(1, 12) for _ in range(5)]
            blocks, most = -(-17 // size) + draw.randrange(4), draw.choice([2, 4, 9])
            more = {"known": [(1, 4), (2, 8)], "steps": 300}
            cases.append(self.case(blocks, size, budgets, most, arrivals, **more))
        self.follow(submission, cases)


# --- QuantizedKV


KEYS, VALUES = "k[:, : self.group], 1, self.bits", "v[:, : self.group], 2, self.bits"
BY_TOKEN = "k[:, : self.group], 2, self.bits"
BY_CHANNEL = "v[:, : self.group], 1, self.bits"


class TestQuantizedKV(Exercise):
    """Keys and values in few bits"""

    name = "QuantizedKV"
    reference = "minitrain.inference.plain.reference:QuantizedKV"
    hidden = HIDDEN
    MISTAKES = (
        ((KEYS, BY_TOKEN, VALUES, BY_CHANNEL), "keys and values are exchanged: keys share a range by the channel, values by the token"),
        ((KEYS, BY_TOKEN), "keys were rounded by the token: a large channel takes the levels from all others"),
        ((VALUES, BY_CHANNEL), "values were rounded by the channel: by the token, no channel of theirs is large"),
        (("k.shape[1] >= self.group", "k.shape[1] > self.group"), "a full group was not rounded until one more token came: it is as soon as it has `group` tokens"),
        (("while k.shape[1] >= self.group:", "own, n = self.group, k.shape[1] // self.group * self.group\n        if n:\n            self.group = n", "self.new = k.clone(), v.clone()", "self.group, self.new = own, (k.clone(), v.clone())"),
         "groups that one append has completed share a range: each group has its own, however many come at once"),
    )  # fmt: skip

    def draw(self, heads, count, size, bits, group):
        """k and v (K, n, C) none of whose codes is near a tie."""
        full = count // group * group
        while True:
            k = torch.randn(heads, count, size) + 3 * torch.randn(heads, 1, size)
            v = torch.randn(heads, count, size)
            if all(
                self.is_clear(z[:, :full].unflatten(1, (-1, group)), dim, bits)
                for z, dim in ((k, 2), (v, 3))
            ):
                return k, v

    def is_clear(self, groups, dim, bits):
        low, high = groups.double().aminmax(dim=dim, keepdim=True)
        places = (groups - low) / (high - low).clamp(min=1e-30) * (2**bits - 1)
        return ((places % 1 - 0.5).abs() > 1e-4).all()

    def compare(self, submission, cases):
        """cases: (options, k, v, parts, turns after which it is read)."""

        def reads(f):
            return [[note["read"] for note in case] for case in probes.cached_in_bits(f, cases)]

        got = submission.run(probes.cached_in_bits, cases)
        read = [[note["read"] for note in case] for case in got]
        why = cause(read, self.reference, self.MISTAKES, reads, 1e-4)
        for (options, *_, parts, turns), notes, want in zip(
            cases, got, reads(variant(self.reference))
        ):
            bits, group = options or (8, 32)
            for turn, note, right in zip(turns, notes, want):
                so_far = parts[: turn + 1]
                told = f"{bits} bits, groups of {group}, parts of {so_far}: keys and values"
                words = why or (
                    "tokens of no full group stay whole, and each group of each head has ranges of its "
                    "own, keys by channel and values by token"
                )
                expect.equal(note["read"], right, 1e-4, [(note["read"], words)], told)
                words = "what `read` gave was changed by a later call: give tensors of their own"
                expect.identical(note["later"], note["read"], [(note["later"], words)], told)
                words = "append has changed k or v: they are the caller's"
                expect.that(note["unchanged"], words)

    @check(points=1, title="full groups: keys by the channel, values by the token")
    def test_groups(self, submission):
        shapes = ((2, 8, 4, 4, 8), (1, 12, 6, 8, 4), (3, 10, 2, 2, 5), (2, 32, 4, 3, 16))
        cases = [(shape[3:], *self.draw(*shape), [shape[1]], [0]) for shape in shapes]
        self.compare(submission, cases)

    @check(points=1, title="in parts: rounded once, when a group is full; the newest stay whole")
    def test_parts(self, submission):
        cases = []
        for parts, bits, group in (
            ([1] * 9, 4, 4), ([3, 6, 1, 10, 2], 2, 5), ([7, 30, 1], 8, 8), ([2, 1], 4, 6), ([5, 3], 4, 1),
        ):  # fmt: skip
            k, v = self.draw(2, sum(parts), 4, bits, group)
            cases.append(((bits, group), k, v, parts, list(range(len(parts)))))
        cases.append(((), *self.draw(1, 40, 4, 8, 32), [20, 20], [0, 1]))
        k, v = torch.full((2, 2, 8, 3), 5.0).unbind(0)  # ranges of one number
        self.compare(submission, [*cases, ((4, 8), k, v - 7, [8], [0])])

    def held(self, submission, count, parts):
        """What is held by heads 2, size 16, groups of 32: its bytes, and what they must be."""
        heads, size, group = 2, 16, 32
        k, v = torch.randn(2, heads, count, size).unbind(0)
        got = submission.run(probes.held_in_bits, (8, group), k, v, parts)
        full = count // group
        codes = 2 * heads * size * group * full
        expect.that(
            got["bytes"] >= 0.9 * codes,
            f"{got['bytes']:,} bytes were seen to be held, and codes alone have {codes:,}: hold tensors "
            "in attributes, and compute with PyTorch's operations, in its sight",
        )
        ranges = 8 * heads * full * (size + group)
        return got, codes + ranges + 2 * 4 * heads * size * group  # room for a group, some keep it

    @check(points=4, title="tokens that come one by one: floats are gone when their group is full")
    def test_codes(self, submission):
        count = 32 * 5 + 7
        got, want = self.held(submission, count, [1] * count)
        expect.that(
            got["bytes"] <= 1.3 * want,
            f"{count} tokens: {got['bytes']:,} bytes are held, as floats they would be "
            f"{2 * 4 * 2 * 16 * count:,}, as codes {want:,}. A full group is held as codes, no floats, "
            "of a byte each, with its ranges",
        )

    @check(
        points=2, title="held is nothing else: no slice of a large tensor, nothing that was read"
    )
    def test_bytes(self, submission):
        count = 32 * 9 + 5
        for parts in ([count], [100, 3, count - 103]):
            got, want = self.held(submission, count, parts)
            expect.that(
                got["bytes"] <= 1.02 * want,
                f"{count} tokens in parts of {parts}: {got['bytes']:,} bytes are held. Codes, ranges "
                f"and a group of newest tokens are {want:,}. A slice keeps all of its tensor alive: "
                "`.clone()` it",
            )
            expect.that(
                got["after"] <= 1.02 * want,
                f"after `read` {got['after']:,} bytes are held, before it {got['bytes']:,}: what it "
                "restores is the reader's, do not keep it",
            )


# --- experiments


class TestRoofline(Experiment):
    """Prefill and decode under the roof"""

    name = "roofline"
    rests_on = ("cached_attention",)

    @check(
        points=2, title="a prompt's intensity rises with its tokens; a batch of answers has a limit"
    )
    def test_intensity(self, table):
        rows = expect.rows(table, "kind", "tokens")
        at = {key: row["flops"] / row["bytes"] for key, row in rows.items()}
        for kind in ("prefill", "decode"):
            values = [at[kind, n] for n in (1, 4, 16, 64, 256)]
            told = ", ".join(f"{value:.2f}" for value in values)
            expect.that(all(a < b for a, b in pairwise(values)), f"{kind}: {told} FLOPs a byte")
        expect.close(at["decode", 1], 0.53, tol=0.1, what="FLOPs a byte of one decoded token")
        words = f"256 tokens: {at['decode', 256]:.1f} FLOPs a byte decoded, {at['prefill', 256]:.1f} of a prompt"
        expect.that(at["decode", 256] < at["prefill", 256] / 4, words)

    @check(points=1, title="tokens that come together cost less each")
    def test_seconds(self, table):
        rows = expect.rows(table, "kind", "tokens")
        for kind in ("prefill", "decode"):
            one, many = (rows[kind, n]["seconds"] / n for n in (1, 64))
            expect.that(many < one / 2, f"{kind}: {one:.2g} s a token alone, {many:.2g} s in 64")


class TestWaste(Experiment):
    """Memory reserved and used"""

    name = "waste"
    rests_on = ("Pool", "BlockManager")

    @check(points=3, title="small pages waste a few percent, rows more than half")
    def test_waste(self, table):
        rows = expect.rows(table, "way", "size")
        share = {key: 1 - row["used"] / row["held"] for key, row in rows.items()}
        words = f"rows waste {share['rows of 2,048', 2048]:.1%}"
        expect.that(share["rows of 2,048", 2048] > 0.5, words)
        sizes = [share["pages", size] for size in (256, 64, 32, 16, 8, 1)]
        expect.that(
            all(a > b for a, b in pairwise(sizes)) and abs(sizes[-1]) < 1e-9 and sizes[3] < 0.04,
            f"pages of 256, 64, 32, 16, 8, 1 waste {', '.join(f'{s:.1%}' for s in sizes)}",
        )
        used = {row["used"] for row in table if "common" not in row["way"]}
        expect.that(len(used) == 1, f"the ways use {sorted(used)} places: the same texts for all")

    @check(points=1, title="a common beginning is held once")
    def test_common(self, table):
        row = expect.rows(table, "way", "size")["pages, 96 tokens in common", 16]
        words = f"{row['held']:,} places hold {row['used']:,} tokens of texts"
        expect.that(row["used"] > row["held"], words)


class TestModes(Experiment):
    """The same tokens in every mode"""

    name = "modes"
    rests_on = ("sample", "cached_attention", "Pool", "BlockManager", "schedule")
    NAMES = ("one by one", "continuous", "prefix shared", "preempted", "random chunks",
             "preempted, random chunks", "blocks of one token")  # fmt: skip

    @check(points=4, title="one hash for all greedy modes, one for all that draw")
    def test_hashes(self, table):
        rows = expect.rows(table, "mode", "tokens by")
        for kind, names in (
            ("greedy", ("naive", "cached", "static batch", *self.NAMES)),
            ("a draw", self.NAMES),
        ):
            hashes = {name: rows[name, kind]["hash"] for name in names}
            common = Counter(hashes.values()).most_common(1)[0][0]
            other = [name for name, value in hashes.items() if value != common]
            expect.that(not other, f"{kind}: {', '.join(other)} told other tokens than the rest")
        expect.that(
            rows["continuous", "greedy"]["hash"] != rows["continuous", "a draw"]["hash"],
            "what was drawn is what greedy told: temperature 0.9 must draw",
        )

    @check(points=2, title="and the modes did what their names say")
    def test_happened(self, table):
        rows = expect.rows(table, "mode", "tokens by")
        preempted = rows["preempted", "greedy"]["preemptions"]
        expect.that(preempted >= 20, f"{preempted} preemptions: at least 20, make the pool smaller")
        reused = rows["prefix shared", "greedy"]["reused"]
        expect.that(reused > 0, "no token was found in another's block")
        steps = {name: rows[name, "greedy"]["steps"] for name in ("continuous", "random chunks")}
        words = f"{steps['random chunks']} steps in chunks, {steps['continuous']} without"
        expect.that(steps["random chunks"] > 2 * steps["continuous"], words)


class TestThroughput(Experiment):
    """Four ways to serve the same requests"""

    name = "throughput"
    rests_on = ("sample", "cached_attention", "Pool", "BlockManager", "schedule")

    @check(points=3, title="a cache beats none, batches beat one by one, and continuous ones win")
    def test_order(self, table):
        rows = expect.rows(table, "way")
        ways = ("naive", "a cache", "static batches", "continuous")
        speed = {way: rows[way]["tokens"] / rows[way]["seconds"] for way in ways}
        told = ", ".join(f"{way} {value:,.0f}" for way, value in speed.items())
        expect.that(
            len({row["tokens"] for row in table}) == 1, "the ways told different numbers of tokens"
        )
        expect.that(
            speed["naive"] < speed["a cache"] < speed["static batches"]
            and speed["continuous"] > 1.1 * speed["static batches"],
            f"tokens a second: {told}",
        )

    @check(points=1, title="half of the answers are complete earlier than in static batches")
    def test_latency(self, table):
        rows = expect.rows(table, "way")
        static, ours = (rows[way] for way in ("static batches", "continuous"))
        told = f"{static['last_50']:.3f} s in static batches, {ours['last_50']:.3f} s in continuous ones"
        expect.that(0 < ours["first_50"] <= ours["last_50"] < static["last_50"] * 1.1, told)


class TestChunks(Experiment):
    """A long prompt, in chunks"""

    name = "chunks"
    rests_on = ("sample", "Pool", "BlockManager", "schedule")

    @check(points=3, title="chunks cut the pause between tokens to a third and less")
    def test_pause(self, table):
        rows = expect.rows(table, "budget")
        expect.that(len(table) >= 5, f"{len(table)} budgets: at least 5")
        whole, least = rows[4096]["gap_99"], min(row["gap_99"] for row in table)
        words = f"{whole:.3f} s without chunks, {least:.3f} s at the least with them"
        expect.that(least <= whole / 3, words)
        for row in table:
            expect.that(
                0 < row["gap_50"] <= row["gap_99"] and row["gaps"] >= 6 and row["wait"] > 0,
                f"budget {row['budget']}: median {row['gap_50']:.3g} s, 99th percentile {row['gap_99']:.3g} s "
                f"of {row['gaps']} gaps",
            )


class TestKvBytes(Experiment):
    """Bytes of keys and values"""

    name = "kv_bytes"
    rests_on = ("QuantizedKV",)

    @check(points=2, title="what is held is what the formula says, in all six caches")
    def test_formula(self, table):
        expect.that(len(table) >= 6, f"{len(table)} caches, and there are 6")
        for row in table:
            expect.close(row["held"], row["formula"], tol=0.01, what=f"bytes held, {row['cache']}")
        held = sorted({row["held"] for row in table}, reverse=True)
        expect.that(len(held) >= 6, "six caches hold six different numbers of bytes")


class TestRounding(Experiment):
    """What bits cost, by channel and by token"""

    name = "rounding"
    rests_on = ("QuantizedKV",)

    @check(points=1, title="planted channels change no float, and nothing by the channel")
    def test_planted(self, table):
        rows = expect.rows(table, "planted", "bits")
        plain, large = rows[1, 8], rows[10, 8]
        expect.close(
            large["whole"], plain["whole"], tol=1e-3, what="the loss with planted channels"
        )
        for bits in (8, 4, 3, 2):
            a, b = (rows[factor, bits]["by_channel"] for factor in (1, 10))
            words = f"{bits} bits by the channel: {a:.4f} nats, {b:.4f} with planted ones"
            expect.that(abs(a - b) < 0.02, words)

    @check(points=2, title="8 bits cost nothing; the other way round large channels cost the most")
    def test_order(self, table):
        rows = expect.rows(table, "planted", "bits")
        row = rows[10, 2]
        words = f"2 bits, planted: {row['by_channel']:.4f} nats by the channel, {row['by_token']:.4f} the other way"
        expect.that(row["by_token"] - row["by_channel"] > 0.02, words)
        eight = rows[10, 8]
        words = f"8 bits: {eight['by_channel']:.4f} nats, {eight['whole']:.4f} as they are"
        expect.that(abs(eight["by_channel"] - eight["whole"]) < 0.01, words)


class TestRidge(Question):
    """Where arithmetic begins to decide"""

    name = "ridge"
    rests_on = ("roofline",)

    @check(points=5, title="the smallest prompt of the table that stands above the ridge")
    def test_value(self, value, records):
        rows = expect.recorded(records, "roofline")
        above = [r for r in rows if r["flops"] / r["bytes"] >= r["peak"] / r["bandwidth"]]
        prompts = [row["tokens"] for row in above if row["kind"] == "prefill"]
        expect.that(
            prompts, "no prompt of your table stands above the ridge: record it again, undisturbed"
        )
        every = sorted({row["tokens"] for row in rows})
        before = [n for n in every if n < min(prompts)]
        expect.close(value, min(prompts), tol=1e-6, what="tokens", hints=[
            (max(prompts), "that is the largest of the table: the smallest one above the ridge"),
            (max(before, default=-1), "that one is below the ridge still: FLOPs over bytes against peak over bandwidth"),
        ])  # fmt: skip


class TestBlock(Question):
    """How large a block may be"""

    name = "block"
    rests_on = ("waste",)

    @check(points=5, title="the largest block with which less than 4% are wasted")
    def test_value(self, value, records):
        rows = expect.recorded(records, "waste")
        pages = {
            row["size"]: 1 - row["used"] / row["held"] for row in rows if row["way"] == "pages"
        }
        fits = [size for size, wasted in pages.items() if wasted < 0.04]
        expect.that(fits, "no block of your table wastes less than 4%")
        expect.close(value, max(fits), tol=1e-6, what="tokens a block", hints=[
            (min(fits), "that is the smallest: the largest that wastes less than 4%"),
            (min((s for s in pages if s not in fits), default=-1), "that one wastes more than 4%"),
        ])  # fmt: skip


class TestChunk(Question):
    """The budget that cuts the pause"""

    name = "chunk"
    rests_on = ("chunks",)

    @check(points=5, title="the largest budget whose 99th percentile is at most a third")
    def test_value(self, value, records):
        rows = expect.rows(expect.recorded(records, "chunks"), "budget")
        whole = rows[4096]["gap_99"]
        fits = [budget for budget, row in rows.items() if row["gap_99"] <= whole / 3]
        half = [budget for budget, row in rows.items() if row["gap_99"] <= whole / 2]
        expect.that(
            fits, "no budget of your table cuts the pause to a third: record it again, undisturbed"
        )
        expect.close(value, max(fits), tol=1e-6, what="the budget", hints=[
            (min(fits), "that is the smallest: the largest that is at most a third"),
            (max(half), "its 99th percentile is above a third of that without chunks"),
        ])  # fmt: skip
