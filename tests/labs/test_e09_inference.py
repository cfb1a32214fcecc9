"""The checks of lab e09: an engine's parts, graded on who holds, computes and draws what."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import accumulate, combinations, pairwise, takewhile
from math import prod
from random import Random

import torch

from minitrain.inference.plain.reference import schedule as by_the_rule
from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import difference
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


# --- sample


def probabilities(z, temperature, top_k, top_p, mistake=""):
    """(V,) float64. Mistakes: `p first`, `late`, the temperature after the cuts, `short`."""
    if temperature == 0:
        return torch.zeros(len(z), dtype=torch.float64).index_fill_(0, z.argmax(), 1.0)
    z = z.double() if mistake == "late" else z.double() / temperature
    ordered, order = z.sort(descending=True)
    left = torch.arange(len(z)) < (len(z) if top_k is None else top_k)
    p = ordered.softmax(0) if mistake == "p first" else (ordered + left.log()).softmax(0)
    if top_p is not None:
        left &= p.cumsum(0) - p * (mistake != "short") < top_p
        left[0] = True
    p = ordered.softmax(0) * left
    p = p ** (1 / temperature) if mistake == "late" else p
    return torch.zeros_like(p).scatter(0, order, p / p.sum())


MISTAKES = {
    "likeliest": (
        lambda t, k, p: (0, k, p),
        "the likeliest token was taken each time: above temperature 0 it is drawn",
    ),
    "times": (
        lambda t, k, p: (1 / t, k, p),
        "the logits were multiplied by the temperature: they are divided by it",
    ),
    "no temperature": (lambda t, k, p: (1, k, p), "the temperature was left out"),
    "late": (
        lambda t, k, p: (t, k, p, "late"),
        "the temperature comes first: top-p counts probabilities that it has made",
    ),
    "no k": (lambda t, k, p: (t, None, p), "top-k has cut nothing"),
    "k + 1": (lambda t, k, p: (t, k and k + 1, p), "top-k has left one token too many"),
    "k - 1": (lambda t, k, p: (t, k and k - 1, p), "top-k has left one token too few"),
    "no p": (lambda t, k, p: (t, k, None), "top-p has cut nothing"),
    "p first": (
        lambda t, k, p: (t, k, p, "p first"),
        "top-p was counted before top-k: it goes through what top-k has left, scaled to a sum of 1",
    ),
    "short": (
        lambda t, k, p: (t, k, p, "short"),
        "the token that crosses p was cut off: it stays, so that at least one is left",
    ),
    "p or k": (
        lambda t, k, p: (t, None if p else k, p),
        "where both are given, top-k has cut nothing",
    ),
    "k or p": (
        lambda t, k, p: (t, k, None if k else p),
        "where both are given, top-p has cut nothing",
    ),
}
DRAWS = 2500
FAR = 0.09  # between what is right and any mistake
CALLERS = "logits were changed: they are the caller's"


class TestSample(Exercise):
    """A token for each request"""

    name = "sample"
    reference = "minitrain.inference.plain.reference:sample"
    hidden = HIDDEN

    def draw(self, settings, mistakes):
        """Logits (V,) on which each of the mistakes is seen, and none is taken for another."""
        while True:
            z = (3 * torch.rand(7)).float()
            ways = [settings, *(MISTAKES[name][0](*settings) for name in mistakes)]
            right, *_ = shares = [probabilities(z, *way) for way in ways]
            steps = right.sort(descending=True).values.cumsum(0)
            clear = all((a - b).abs().max() > FAR for a, b in combinations(shares, 2))
            near = settings[2] is not None and (steps - settings[2]).abs().min() < 0.01
            if clear and not near and (right[right > 0] > 0.02).all():
                return z

    def one_int_each(self, tokens, count):
        expect.that(
            isinstance(tokens, (list, tuple)) and len(tokens) == count,
            f"got {expect.show(tokens)}, expected a list of {count} ints, one for each request",
        )
        for token in tokens:
            words = f"a token is {expect.show(token)}, expected a Python int: `int(…)`"
            expect.that(type(token) is int, words)

    def are_drawn(self, submission, cases):
        """cases: (settings, mistakes). A mistake is named where it explains all of them."""
        drawn = [(self.draw(*case), *case[0]) for case in cases]
        batches = [
            (z.expand(DRAWS, -1).clone(), [(*s, int(torch.randint(2**40, ()))) for _ in range(DRAWS)], 1)
            for z, *s in drawn
        ]  # fmt: skip
        got = submission.run(probes.sampled, batches)
        told = [self.shares(*one["tokens"]) for one in got]
        causes = [
            words
            for way, words in MISTAKES.values()
            if all(self.fits(one, z, way(*s)) for one, (z, *s) in zip(told, drawn))
        ]
        for one, (z, *settings) in zip(told, drawn):
            expect.that(
                self.fits(one, z, settings),
                "temperature {:g}, top_k {}, top_p {}: ".format(*settings)
                + f"of {DRAWS} tokens the shares are {self.digits(one)}, and the probabilities "
                f"{self.digits(probabilities(z, *settings))}\n{', or '.join(causes)}",
            )
        expect.that(all(one["unchanged"] for one in got), CALLERS)

    def shares(self, tokens):
        """(V,): how often each was drawn, of all draws."""
        self.one_int_each(tokens, DRAWS)
        counts = Counter(tokens)
        return torch.tensor([counts[i] / DRAWS for i in range(7)], dtype=torch.float64)

    def digits(self, shares):
        return ", ".join(f"{share:.3g}" for share in shares.tolist())

    def fits(self, shares, z, settings):
        p = probabilities(z, *settings)
        return bool(((shares - p).abs() <= 5 * (p * (1 - p) / DRAWS).sqrt() + 1e-9).all())

    @check(points=2, title="the temperature; 0 takes the likeliest and draws nothing")
    def test_temperature(self, submission):
        hot = 0.5 if torch.rand(()) < 0.5 else 1.7
        self.are_drawn(submission, [((hot, None, None), ["times", "no temperature"])])
        asked = [(0.0, k, p, 5) for k, p in ((None, None), (3, 0.5)) for _ in range(3)]
        moved = self.are_likeliest(submission, torch.randn(6, 40), asked)
        words = "a greedy request has drawn from its generator: the likeliest token needs no draw"
        expect.that(not any(moved), words)

    def are_likeliest(self, submission, logits, asked):
        (got,) = submission.run(probes.sampled, [(logits, asked, 2)])
        what = "tokens (temperature, top_k, top_p: {}, {}, {})".format(*asked[0])
        for tokens in got["tokens"]:
            self.one_int_each(tokens, len(asked))
            expect.equal(tokens, logits.argmax(1).tolist(), what=what)
        expect.that(got["unchanged"], CALLERS)
        return got["moved"]

    @check(points=3, title="top-k, then top-p of what is left; the token that crosses p stays")
    def test_cuts(self, submission):
        cases = [
            ((1.0, 3, None), ["no k", "k + 1", "k - 1"]),
            ((1.0, None, 0.6), ["no p", "short"]),
            ((1.0, 4, 0.7), ["p first", "no p", "short"]),
            ((1.0, 4, 0.7), ["p first", "no k", "short"]),
            ((2.5, None, 0.7), ["late", "no temperature", "no p"]),
        ]
        self.are_drawn(submission, cases)
        asked = [(1.0, 1, None, 1), (1.0, 50, 1e-9, 2), (0.7, 5, 1e-6, 3)]
        self.are_likeliest(submission, torch.randn(3, 5), asked)

    @check(points=4, title="a request's tokens depend on its own generator, and on nobody else")
    def test_own_generator(self, submission):
        settings = [(1.0, None, None), (0.8, 90, None), (0.0, None, None), (1.2, None, 0.95)]
        settings += [(1.0, 200, 0.9), (1.0, None, None)]
        asked = [(*setting, int(torch.randint(2**40, ()))) for setting in settings]
        logits, order = torch.randn(6, 300), torch.randperm(6).tolist()
        alone = [(logits[i : i + 1], asked[i : i + 1], 8) for i in range(6)]
        turned = (logits[order], [asked[i] for i in order], 8)
        batches = [*alone, (logits, asked, 8), turned, (logits[1:4], asked[1:4], 8)]
        got = submission.run(probes.sampled, batches)
        for one, (_, requests, _) in zip(got, batches):
            for tokens in one["tokens"]:
                self.one_int_each(tokens, len(requests))
            expect.that(
                one["everybody"],
                "torch's global generator was used: hand `generator=request.generator` to whatever "
                "draws",
            )
            expect.that(one["unchanged"], CALLERS)
        own = [[tokens[0] for tokens in one["tokens"]] for one in got[:6]]
        batch, mixed, some = (list(zip(*one["tokens"])) for one in got[6:])
        for i in range(6):
            is_new = got[i]["moved"][0] and len(set(own[i])) > 1
            expect.that(
                is_new or settings[i][0] == 0,
                f"request {i}, alone, got {own[i]} in eight turns with the same logits, or "
                "its generator has not moved: hand `generator=request.generator`, itself, to "
                "whatever draws, so that it goes on from turn to turn",
            )
            expect.that(
                got[6]["moved"][i] or settings[i][0] == 0,
                f"in a batch of six the generator of request {i} has not moved: each request draws "
                "from its own generator, whoever else is in the batch",
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


CAUSAL = "a new token has read those behind it: inside a chunk the mask is causal too"
TOP_LEFT = (
    "the first query was lined up with the first key, as `is_causal=True` does: new token i reads "
    "all places up to length + i"
)
MASKS = [  # of the place that is read, the reader's own, the first and the end of its call
    (lambda place, at, start, stop: place < stop, CAUSAL),
    (lambda place, at, start, stop: torch.where(start > 0, place < stop, place <= at), CAUSAL),
    (lambda place, at, start, stop: place <= at - start, TOP_LEFT),
    (
        lambda place, at, start, stop: place <= at - torch.where(stop - start == 1, 0, start),
        TOP_LEFT,
    ),
    (
        lambda place, at, start, stop: place < at,
        "a new token has read what stands before it, and not itself: it reads its own place, too",
    ),
]
FROM_0 = "positions begin at 0 in every call: the first new token stands at place `length`"


def attended(weights, size, x, parts, kv_heads, mask=None, from_0=False, tiled=False):
    """Outputs, keys and values (B, K, T, C) of a whole text, and its keys as they were projected.

    Mistakes: another mask, positions from 0 in each call, key heads in the order of `repeat`.
    """
    q, k, v, o = weights
    plain_q, plain_k, values = ((x @ w.T).unflatten(-1, (-1, size)) for w in (q, k, v))
    start = torch.tensor([s for s, n in zip(accumulate([0, *parts]), parts) for _ in range(n)])
    stop = torch.tensor([s for s, n in zip(accumulate(parts), parts) for _ in range(n)])
    place = torch.arange(x.shape[1])
    at = place - start if from_0 else place
    keys = probes.turned(plain_k, at).transpose(1, 2)
    values, queries = values.transpose(1, 2), probes.turned(plain_q, at).transpose(1, 2)
    times = queries.shape[1] // kv_heads
    spread = [
        z.repeat(1, times, 1, 1) if tiled else z.repeat_interleave(times, 1) for z in (keys, values)
    ]
    scores = queries @ spread[0].transpose(2, 3) / size**0.5
    mask = mask or (lambda place, at, start, stop: place <= at)
    seen = mask(place, place[:, None], start[:, None], stop[:, None])
    shares = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    out = (shares @ spread[1]).transpose(1, 2).flatten(2) @ o.T
    return out, keys, values, plain_k.transpose(1, 2)


class TestCachedAttention(Exercise):
    """Attention over what is kept"""

    name = "cached_attention"
    reference = "minitrain.inference.plain.reference:cached_attention"
    hidden = HIDDEN

    def draw(self, texts, parts, heads, kv_heads, size, dtype=torch.float64, room=5):
        width, count = heads * size + 2, sum(parts)
        shapes = [(heads * size, width), *[(kv_heads * size, width)] * 2, (width, heads * size)]
        weights = [torch.randn(shape, dtype=dtype) / width**0.5 for shape in shapes]
        weights[0] *= 3
        x = torch.randn(texts, count, width, dtype=dtype)
        return weights, size, x, list(parts), count + room, kv_heads

    def compare(self, submission, cases):
        got = submission.run(probes.read_in_parts, cases)
        for case, one in zip(cases, got):
            self.is_right(case, one)
        return got

    def is_right(self, case, got):
        weights, size, x, parts, _, kv_heads = case
        texts, heads = plural(len(x), "text"), len(weights[0]) // size
        told = f"{texts} in parts of {parts}, {heads} heads, {kv_heads} of keys, {x.dtype}"
        given = (weights, size, x, parts, kv_heads)
        out, *kept = attended(*given)
        self.are_kept(given, got, kept, told)
        for part, one in zip(out.split(parts, dim=1), got["outs"]):
            expect.that(
                isinstance(one, torch.Tensor) and one.shape == part.shape,
                f"{told}: got {expect.show(one)}, expected a tensor {tuple(part.shape)}",
            )
        whole = torch.cat(got["outs"], dim=1)
        hints = [(attended(*given, mask=mask)[0], words) for mask, words in MASKS]
        hints += [
            (attended(*given, from_0=True)[0], FROM_0),
            (
                attended(*given, tiled=True)[0],
                "a query head has read another one's keys: query head h reads h // (H/K), so "
                "`repeat_interleave`, or `enable_gqa=True`",
            ),
        ]
        if whole.isnan().any():
            words = (
                "it has NaN: what lies behind the new tokens was read, and masked or not 0 · NaN is "
                "NaN, or a token reads no place, where each reads all up to its own, and its own"
            )
            hints = [(whole, words)]
        expect.equal(whole, out, what=f"the output ({told})", hints=hints)
        expect.that(got["unchanged"], "x was changed: it is the caller's")

    def are_kept(self, given, got, want, told):
        *_, x, parts, _ = given
        keys, values, plain = want
        count = x.shape[1]
        at_the_front = "each call has written at the front: write behind what is kept, at `length`"
        for name, right, hints in (
            (
                "keys",
                keys,
                [
                    (
                        plain,
                        "they are kept unturned: turn a key before it is kept, and never again",
                    ),
                    (attended(*given, from_0=True)[1], FROM_0),
                ],
            ),
            (
                "values",
                values,
                [
                    (
                        probes.turned(values.transpose(1, 2), torch.arange(count)).transpose(1, 2),
                        "they are turned: only queries and keys are",
                    )
                ],
            ),
        ):
            held = got[name][:, :, :count]
            expect.that(
                not held.isnan().all(),
                f"{told}: nothing was written into `{name}`: write at places length … length + T - 1",
            )
            front = torch.full_like(right, torch.nan)
            for part in right.split(parts, dim=2):
                front[:, :, : part.shape[2]] = part
            hints = [*hints, (front, at_the_front)]
            expect.equal(held, right, what=f"{name} that are kept ({told})", hints=hints)
            expect.that(
                got[name][:, :, count:].isnan().all(),
                f"{told}: places behind the new tokens were written: they are rubbish, and stay so",
            )

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
        got = self.compare(submission, cases)
        for case, one in zip(cases, got):
            texts, count = len(case[2]), sum(case[3])
            for name in "qkvo":
                rows = sum(prod(shape[:-1]) for n, shape in one["projected"] if n == name)
                expect.that(
                    rows == texts * count,
                    f"layer.{name} was called with {rows / texts:g} tokens a text, and the text has "
                    f"{count}: call layer.{name}(…) on each token once",
                )
            tokens = sum(shape[1] for shape, _ in one["turned"])
            expect.that(
                tokens <= 2 * count,
                f"rope was given {tokens} tokens, in parts of {case[3]}: of each of the {count} "
                f"tokens one query and one key are turned, once ({texts} texts)",
            )


# --- Pool


COUNTED = {
    "look": "a list, one count for each block: at first nobody holds any",
    "take": "a block that is taken is held once",
    "hold": "`hold` is one text more",
    "again": "`hold` is one text more, of a block that was free too",
    "drop": "`drop` is one text less",
    "name": "a name changes no count",
    "find": "who is found is not held yet",
}


class PoolModel:
    """What a pool may do; what it does wrong is said."""

    def __init__(self, size):
        self.refs, self.keys, self.clock = [0] * size, {}, 0
        self.left = [0] * size  # when its last holder left
        self.taken, self.named, self.has_looked = {}, set(), False

    def free(self):
        return [block for block, count in enumerate(self.refs) if count == 0]

    def take(self, name, got):
        free = self.free()
        if not free:
            expect.that(got is None, f"all blocks are held, and take() gave {got}: None")
            return
        expect.that(
            type(got) is int and got in free,
            f"take() gave {expect.show(got)}, and nobody holds {free}: `take` must take a "
            "free block out, and `hold` one that was free; the last `drop` alone brings it back",
        )
        named = {block: key for key, block in self.keys.items()}
        bare = [block for block in free if block not in named]
        if bare:
            expect.that(
                got in bare,
                f"take() gave block {got}, which can be found by a key, and {bare} have none: a block "
                "without a key goes first, nothing is lost with it",
            )
        else:
            oldest = min(free, key=self.left.__getitem__)
            looked = "; `find` holds nothing, and leaves the order as it is" * self.has_looked
            expect.that(
                got == oldest,
                f"take() gave block {got}, and block {oldest} is free for the longest time: the "
                f"least recently used goes first, and a block that was held again begins anew{looked}",
            )
            del self.keys[named[got]]
        self.refs[got], self.taken[name] = 1, got

    def step(self, kind, what, got):
        self.clock += 1
        if kind == "take":
            self.take(what[0], got)
        elif kind == "hold":
            self.refs[self.taken[what[0]]] += 1
        elif kind == "drop":
            block = self.taken[what[0]]
            self.refs[block] -= 1
            self.left[block] = self.clock
        elif kind == "name":
            self.keys[what[1]] = self.taken[what[0]]
            self.named.add(what[1])
        else:
            self.find(what[0], got)
            self.has_looked |= kind == "find"
            if kind == "again":
                block = self.taken[what[1]] = self.keys[what[0]]
                self.refs[block] += 1

    def find(self, key, got):
        want = self.keys.get(key)
        if want is not None:
            held = (
                "when it is held, too" if self.refs[want] else "when nobody holds it, until taken"
            )
            words = f"a block is found {held}; a key may be anything, also 0"
            if want == 0:
                words += ", and 0 is a block as any other: only `None` says that there is none"
        elif key in self.named:
            words = "the block was taken for other content, and its old key must be forgotten then"
        else:
            words = "nothing has had this key"
        told = f"find({key!r}) gave {expect.show(got)}, expected {want}: {words}"
        expect.that(got == want and type(got) is type(want), told)


class TestPool(Exercise):
    """Blocks, counted and found"""

    name = "Pool"
    reference = "minitrain.inference.plain.reference:Pool"
    hidden = HIDDEN

    def follow(self, submission, *scripts):
        """Each operation of each script, against the model."""
        for (size, operations), notes in zip(scripts, submission.run(probes.pooled, scripts)):
            model = PoolModel(size)
            for number, ((kind, *what), note) in enumerate(zip([("look",), *operations], notes)):
                result, refs, available = note
                if kind != "look":
                    model.step(kind, what, result)
                shown = f"after {number} operations on {size} blocks, the last of them {kind}"
                hints = [(refs, COUNTED[kind])]
                expect.equal(refs, model.refs, what=f"refs, {shown}", hints=hints)
                hints = [(available, COUNTED[kind])]
                expect.equal(
                    available, len(model.free()), what=f"available(), {shown}", hints=hints
                )

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
            f"holding and dropping free blocks took {small:,} steps in a pool of 1,000 blocks and "
            f"{large:,} in one of 100,000: something searches through the free ones. An OrderedDict "
            "finds any of them at once",
        )


# --- BlockManager


ANEW = ". If you remember blocks' keys: a block that is taken anew has lost its own, also one for a copy"


class Watch:
    """Follows a manager's notes: what each block holds, and who may read and write it."""

    def __init__(self, num_blocks, size, operations, in_order):
        self.size, self.available = size, num_blocks
        self.operations, self.in_order = operations, in_order  # the tail is dropped first
        self.texts = {}  # name -> [adapter, tokens, computed, table]
        self.holds = defaultdict(
            dict
        )  # block -> offset -> content: an adapter and tokens up to there
        self.found = {}  # block -> content it is named by
        self.of_key = {}  # key -> content
        self.reused = set()  # blocks that had other content before

    def follow(self, notes):
        """Operation by operation; each has one or two notes."""
        notes = iter(notes)
        for kind, name, *what in self.operations:
            if kind == "admit":
                self.admit(name, *what, next(notes))
                if name in self.texts:
                    self.commit(name, next(notes))
            elif name in self.texts and kind == "go":
                _, tokens, computed, _ = self.texts[name]
                tokens += what[1]
                if min(len(tokens), computed + what[0]) > computed and self.grow(name, next(notes)):
                    self.commit(name, next(notes))
            elif name in self.texts:
                getattr(self, kind)(name, *what, next(notes))

    def contents(self, adapter, tokens, stop):
        """What the full blocks of the first `stop` tokens hold at their ends."""
        ends = range(self.size, stop + 1, self.size)
        return [(adapter, tuple(tokens[:end])) for end in ends]

    def counts(self):
        return Counter(block for *_, table in self.texts.values() for block in table)

    def shape(self, note, told):
        """Counts are those of the tables."""
        counts = Counter(block for table in note["tables"].values() for block in table)
        for block, refs in enumerate(note["refs"]):
            is_few = refs < counts[block]
            words = "a text that uses it must hold it" if is_few else "give back what none names"
            told_refs = f"block {block} is in {counts[block]} tables and its count is {refs}"
            expect.that(refs == counts[block], f"{told}: {told_refs}: {words}")
        self.available = note["available"]

    def nothing_changed(self, note, told):
        counts = self.counts()
        want = [counts[block] for block in range(len(note["refs"]))]
        words = "what was held or taken on the way is given back, and nothing else"
        hints = [(note["refs"], words)]
        what = f"{told}, blocks are missing, nothing changes: refs"
        expect.equal(note["refs"], want, what=what, hints=hints)
        lost = set(self.found) - {block for block, _ in note["found"]}
        expect.that(
            not lost,
            f"{told}: blocks are missing and it gave None, but {sorted(lost)} were taken on the way, "
            "and can no longer be found: count first, take then",
        )

    def admit(self, name, tokens, most, adapter, *rest):
        note = rest[-1]
        size, told = self.size, f"admit of {len(tokens)} tokens, {most} at most"
        by_content = {what: block for block, what in self.found.items()}
        chain = map(by_content.get, self.contents(adapter, tokens, len(tokens) - 1))
        blocks = list(takewhile(lambda block: block is not None, chain))
        best = len(blocks) * size
        total = -(-min(len(tokens), best + most) // size)
        counts = self.counts()
        needed = total - len(blocks) + sum(counts[block] == 0 for block in blocks)
        got = note["result"]
        if needed > self.available:
            expect.that(
                got is None,
                f"{told}: {needed} blocks are needed and {self.available} are free, so None was "
                "expected. Free blocks that hold its known tokens are in its table then: count the "
                "free ones without them",
            )
            self.nothing_changed(note, told)
            return
        expect.that(
            type(got) is int,
            f"{told}: got {got}, expected a table (a list) and how many tokens are known: {needed} "
            f"blocks are needed, and {self.available} are free",
        )
        table = note["tables"][name]
        for place in range(min(got, len(table) * size)):
            held = self.holds[table[place // size]].get(place % size)
            expect.that(
                held == (adapter, tuple(tokens[: place + 1])),
                f"{told}: {got} tokens are said to be known, and block {table[place // size]} holds "
                + self.whose(held, adapter, tokens, place)
                + ANEW * bool(self.reused.intersection(table[: place // size + 1])),
            )
        expect.that(
            got < len(tokens),
            f"{told}: all {got} tokens are said to be known: the last one is always computed, for its "
            "logits are wanted",
        )
        expect.that(
            got == best,
            f"{told}: {got} tokens are said to be known, expected {best}: known are whole blocks that "
            "can be found by the keys that `commit` has made, as far as the chain goes, and the block "
            "of the last token is none of them",
        )
        expect.that(
            len(table) == total,
            f"{told}, {got} known: the table has {len(table)} blocks of {size}, expected {total}: room "
            f"for the known and for {most} more, if there are so many",
        )
        self.texts[name] = [adapter, list(tokens), got, table]
        self.shape(note, told)

    def whose(self, held, adapter, tokens, place):
        if held is None:
            return f"nothing at token {place}: it was never computed"
        if held[1] == tuple(tokens[: place + 1]):
            words = f"another adapter's at token {place}: the adapter belongs to the chain"
            is_zero = {held[0], adapter} == {0, None}
            return words + (", and 0 is an adapter as any other: only None is none" * is_zero)
        return (
            f"another text's at token {place}: a key is made of the tokens and of the key of the "
            "block before"
        )

    def grow(self, name, note):
        before = self.texts[name][3]
        start, stop, size = note["start"], note["stop"], self.size
        told = f"grow from {start} to {stop}, blocks of {size}"
        counts, total = self.counts(), max(len(before), -(-stop // size))
        written = range(start // size, min(-(-stop // size), len(before)))
        shared = [before[index] for index in written if counts[before[index]] > 1]
        needed = total - len(before) + len(shared)
        got, table = note["result"], note["tables"][name]
        if needed > self.available:
            words = f"{told}: {needed} blocks are needed and {self.available} free: None"
            expect.that(got is None, words)
            self.nothing_changed(note, told)
            expect.equal(table, before, what=f"{told}, nothing changes: the table")
            return False
        expect.that(
            isinstance(got, list),
            f"{told}: got {got}, expected a list of copies: {needed} blocks are needed, and "
            f"{self.available} are free",
        )
        expect.equal(len(table), total, what=f"{told}: the table's blocks")
        for now in (table[index] for index in written):
            others = sum(now in t for other, (*_, t) in self.texts.items() if other != name)
            expect.that(
                others == 0,
                f"{told}: block {now} is written, and others hold it: copy on write, the writer gets a "
                "block of its own",
            )
        want = [(block, table[before.index(block)]) for block in shared]
        expect.equal(
            sorted(map(tuple, got)), sorted(want), what=f"{told}: copies, from and to",
            hints=[([(b, a) for a, b in want], "those are the wrong way round: (from, to)"),
                   ([], "the new block is empty: its place in `copies` is missing")],
        )  # fmt: skip
        for source, own in want:
            self.reused |= {own} if self.holds[own] else set()
            self.holds[own] = dict(self.holds[source])
        for block in [own for _, own in want] + table[len(before) :]:
            self.found.pop(block, None)
        self.texts[name][3] = table
        self.shape(note, told)
        return True

    def commit(self, name, note):
        adapter, tokens, _, table = self.texts[name]
        start, stop, size = note["start"], note["stop"], self.size
        told = f"commit after tokens {start} to {stop - 1}, blocks of {size}"
        for place in range(start, stop):
            block = table[place // size]
            if place % size == 0:
                self.reused |= {block} if self.holds[block] else set()
                self.holds[block].clear()
                self.found.pop(block, None)
            self.holds[block][place % size] = adapter, tuple(tokens[: place + 1])
        self.texts[name][2] = stop
        for block, key, length in note["named"]:
            self.is_named(block, key, length, table, stop, told)
        contents = self.contents(adapter, tokens, stop)
        for index in range(start // size, len(contents)):
            expect.that(
                contents[index] in self.found.values(),
                f"{told}: block {index} of the text is full and computed, and cannot be found: one "
                "call names all blocks that have become full. Where one has no key, for another has "
                "its content, that concerns this block alone: the chain goes on behind it, by its key"
                + ANEW
                * bool(self.reused.intersection(table[: index + 1])),
            )
        self.shape(note, told)
        twins = [what for what, count in Counter(self.found.values()).items() if count > 1]
        expect.that(
            not twins,
            f"{told}: the same content was named twice: equal beginnings have equal keys, and where "
            "the pool finds the key already the second block stays without one"
            + ANEW
            * bool(self.reused),
        )

    def is_named(self, block, key, length, table, stop, told):
        held, size = self.holds[block], self.size
        expect.that(
            block in table and len(held) == size and (table.index(block) + 1) * size <= stop,
            f"{told}: block {block} got a key, and it is not full of computed tokens: only full blocks "
            "can be found",
        )
        what = held[size - 1]
        expect.that(
            self.of_key.setdefault(key, what) == what,
            f"{told}: two different beginnings, {expect.show(list(self.of_key[key][1]))} and "
            f"{expect.show(list(what[1]))}, have got the same key: the block's own tokens decide, what "
            "comes before, so chain the keys, and the adapter, so put it into the chain"
            + ANEW
            * bool(self.reused.intersection(table)),
        )
        expect.that(
            length <= 300,
            f"{told}: a key has {length} characters, written out: it grows with the text. `digest` of "
            "the parent's key and the block's own tokens stays as short as it is",
        )
        self.found[block] = what

    def fork(self, name, child, note):
        adapter, tokens, computed, table = self.texts[name]
        words = "fork gave the parent's own list: a second text has a table of its own"
        expect.that(not note["same"], words)
        expect.equal(note["tables"][child], table, what="the fork's table")
        self.texts[child] = [adapter, list(tokens), computed, list(table)]
        self.shape(note, "fork")

    def end(self, name, note):
        *_, table = self.texts.pop(name)
        words = f"after release the table is {note['after']}: empty it, in place"
        expect.that(note["after"] == [], words)
        self.shape(note, "release")
        dropped = note["dropped"] if self.in_order else sorted(note["dropped"])
        expect.that(
            dropped == (table[::-1] if self.in_order else sorted(table)),
            f"release of {table} dropped {note['dropped']}: each of its blocks once, the tail first, "
            "for nothing finds a tail whose beginning was taken",
        )


class TestBlockManager(Exercise):
    """Tables that share blocks"""

    name = "BlockManager"
    reference = "minitrain.inference.plain.reference:BlockManager"
    hidden = HIDDEN

    def follow(self, submission, scripts, in_order=False):
        told = {
            "nobody holds": "a block was given back more often than it was held: each text that uses a block "
            "holds it, one that was found or forked too, and gives it back once",
            "has None for a block": "count the free blocks first, without those that the text itself will hold",
        }
        with expect.because(told):
            got = submission.run(probes.managed, scripts)
        for (num_blocks, size, operations), notes in zip(scripts, got):
            Watch(num_blocks, size, operations, in_order).follow(notes)

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
        self.follow(
            submission,
            [(5, 4, alone), (3, 4, [*chunks, ("end", "a")]), (3, 4, full), (12, 1, full)],
        )

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
        self.follow(
            submission,
            [(20, 4, twin), (20, 4, same), (20, 4, grown), (20, 4, late), (40, 1, same), (20, 3, late), (4, 4, asleep)],
        )  # fmt: skip

    @check(points=3, title="keys: chained, with the adapter, of full blocks only, and short")
    def test_keys(self, submission):
        a, b, c = self.tokens(4), self.tokens(4), self.tokens(4)
        chain = [("admit", "a", a + b + c, 99, None), ("admit", "b", c + b + a, 99, None),
                 ("admit", "c", b + a + c + a, 99, None), ("admit", "d", a + a + a + [1], 99, None),
                 ("admit", "e", a + b + a + [2], 99, None)]  # fmt: skip
        adapters = [("admit", "a", a + b + c, 99, "x"), ("admit", "b", a + b + c, 99, None),
                    ("admit", "c", a + b + c, 99, "y"), ("admit", "d", a + b + c, 99, "x"),
                    ("end", "a"), ("end", "b"), ("admit", "e", a + b + a, 99, None),
                    ("admit", "f", a + b + c, 99, 0), ("admit", "g", a + b + c, 99, 0)]  # fmt: skip
        long = [("admit", "a", self.tokens(160), 99, None), ("go", "a", 99, []), ("end", "a")]
        self.follow(submission, [(30, 4, chain), (30, 4, adapters), (40, 8, long)])

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
        self.follow(
            submission,
            [(9, 4, forked), (9, 4, even), (2, 4, full), (20, 1, forked), (9, 4, ahead), (4, 4, copied)],
        )  # fmt: skip

    @check(
        points=2,
        title="random traffic in small pools: what is evicted, what is shared, what is lost",
    )
    def test_traffic(self, submission):
        draw = drawn_random()
        self.follow(
            submission,
            [
                (blocks, size, self.traffic(draw))
                for blocks, size in ((8, 3), (5, 2), (14, 4), (9, 1))
            ],
            in_order=True,
        )

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
                tokens = known[: draw.randrange(len(known) + 1)] + [
                    draw.randrange(5) for _ in range(3)
                ]
                old.append([*tokens, draw.randrange(5)])
                operations.append(
                    ("admit", number, tokens, draw.choice([1, 4, 99]), draw.choice("xy"))
                )
                names.append(number)
        return operations


# --- schedule


class TestSchedule(Exercise):
    """One rule for every step"""

    name = "schedule"
    reference = "minitrain.inference.plain.reference:schedule"
    hidden = HIDDEN

    def follow(self, submission, cases):
        wants = probes.served(by_the_rule, cases)
        for case, want, got in zip(cases, wants, submission.run(probes.served, cases)):
            for step, (ours, theirs) in enumerate(zip(want, got), 1):
                names = ("work", "copies", "running", "waiting", "asked", "free")
                different = [name for name in names if ours[name] != theirs[name]]
                if different:
                    before = [name for name, _ in want[step - 2]["running"]] if step > 1 else []
                    words = self.why(ours, theirs, before, case["most_running"])
                    told = f"{case['num_blocks']} blocks of {case['size']}, step {step}, budget "
                    told += f"{ours['budget']}: {different[0]} is {theirs[different[0]]}, expected "
                    raise CheckFailed(f"{told}{ours[different[0]]}\n{words}")
            expect.equal(len(got), len(want), what="steps until everyone has ended")

    def why(self, ours, theirs, before, places):
        """What is certain of the first step that differs; `before`: who ran, the oldest first."""
        work, due = dict(theirs["work"]), dict(ours["work"])
        waits, runs = dict(theirs["waiting"]), dict(theirs["running"])
        gone = [name for name in waits if name in before]
        must = [name for name in dict(ours["waiting"]) if name in before]
        starved = [n for n in before if n in runs and work.get(n, 0) < due.get(n, 0)]
        ahead = [n for n in work if n not in starved and work[n] > due.get(n, 0)]
        causes = [
            (sum(n for n in work.values() if n > 0) > theirs["budget"], "the budget was exceeded: a step computes at most `budget` tokens"),
            (len(runs) > places, "more than `most_running` run at once"),
            (any(count < 1 for count in work.values()), "counts are above 0: leave out who computes nothing"),
            (set(work) & set(waits) - set(due), "who is preempted gets none of this step's work, also where the loop comes to it again"),
            (any(waits[name] for name in gone), "a preempted request kept its `computed`: its blocks are gone, so it is 0"),
            (gone and (set(runs) - set(before) or len(theirs["asked"]) > len(ours["asked"])), "this step has preempted a request, and then admitted one, or asked for it: the blocks just won are gone again"),
            (must and not gone, "a request that lacks a block was passed over or got fewer tokens: blocks change no count, they preempt the youngest"),
            (set(gone) - set(must), "the youngest that runs is preempted, neither the oldest nor the one that lacks a block"),
            (gone == must[::-1] and len(gone) > 1, "of two that were preempted in one step the younger waits in front of the older, which goes later, in front of it"),
            (gone and list(waits)[: len(gone)] != gone, "a preempted request waits in front of all others: it came before them"),
            (starved and set(runs) - set(before), "who runs comes first, or answers stand still, and then who waits"),
            (starved and set(ahead) & set(before), "who runs comes in order of age, the oldest first, and `running` stays so"),
            (set(runs) - set(dict(ours["running"])), "a later request had its turn while an earlier one waits: nobody overtakes"),
            (sum(work.values()) < sum(due.values()), "a prompt that does not fit is cut, and gets what is left of the budget; known tokens were taken off nothing: the budget is for what is computed"),
            (list(work) != list(due), "who runs comes in order of age, the oldest first, and `running` stays so"),
            (theirs["copies"] != ours["copies"], "copies that `grow` asked for are missing"),
            ([a[::2] for a in theirs["asked"]] != [a[::2] for a in ours["asked"]], "`admit` was not given the request's tokens and adapter"),
            (theirs["asked"] != ours["asked"], "`admit` is asked for no more than this step computes: what is left of the budget"),
            (runs != dict(ours["running"]), "`computed` is what `admit` says is known"),
        ]  # fmt: skip
        return expect.first(causes)

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
            self.case(
                4, 4, [20], 9, [(0, 1, 3, 12, None), (0, 2, 3, 12, None), (0, 3, 5, 4, None)]
            ),
            self.case(4, 4, [20], 9, [(0, name, 4, 5, None) for name in (1, 2, 3, 4)]),  # two go
            self.case(
                6, 2, [6], 9, [(0, 1, 2, 6, None), (0, 2, 11, 1, None)]
            ),  # a part of a prompt
        ]
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
            size = draw.choice([1, 2, 4])
            arrivals = [
                (
                    draw.randrange(12),
                    name,
                    draw.randrange(1, 9),
                    draw.randrange(1, 9),
                    draw.choice("xy"),
                )
                for name in range(1, 9)
            ]
            budgets = [draw.randrange(1, 12) for _ in range(5)]
            blocks = -(-17 // size) + draw.randrange(4)
            known = [(1, 4), (2, 8)]
            cases.append(
                self.case(
                    blocks, size, budgets, draw.choice([2, 4, 9]), arrivals, known=known, steps=300
                )
            )
        self.follow(submission, cases)


# --- QuantizedKV


def rounded(x, dim, bits):
    """What is left of x (K, T, C), where what lies along dim shares a range; float64."""
    x = x.double()
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    step = (high - low) / (2**bits - 1)
    codes = torch.where(step > 0, (x - low) / torch.where(step > 0, step, 1.0), 0.0).round()
    return (codes * step + low).float()


def restored(k, v, bits, group, parts, dims=(1, 2), way=""):
    """What `read` gives of k and v (K, n, C), n tokens in parts.

    Mistakes: `append`, all groups of one append share a range; `waits`, until a token more is
    there; `all`, the newest are rounded too; other dims along which a range is shared.
    """
    count = sum(parts)
    stops = list(range(0, count + 1, group))
    if way == "append":
        stops = sorted({0, *(stop // group * group for stop in accumulate(parts))})
    if way == "waits":
        stops = list(range(0, max(count, 1), group))
    if way == "all":
        stops = sorted({*stops, count})
    out = []
    for z, dim in zip((k[:, :count], v[:, :count]), dims):
        own = [rounded(z[:, a:b], dim, bits) for a, b in pairwise(stops)]
        out.append(torch.cat([*own, z[:, stops[-1] :]], dim=1))
    return out


KV = [
    ({"dims": (2, 1)}, "keys and values are exchanged: keys share a range by the channel, values by the token"),
    ({"dims": (2, 2)}, "keys were rounded by the token: a large channel takes the levels from all others"),
    ({"dims": (1, 1)}, "values were rounded by the channel: by the token, no channel of theirs is large"),
    ({"dims": ((1, 2), (1, 2))}, "a group shares one range: keys have one for each channel, values one for each token"),
    ({"dims": (1, (0, 2))}, "heads share a range: each head of a group has its own"),
    ({"way": "all"}, "the newest tokens were rounded, before their group is complete: they stay whole"),
    ({"way": "waits"}, "a full group was not rounded until one more token came: it is as soon as it has `group` tokens"),
    ({"way": "append"}, "groups that one append has completed share a range: each group has its own, however many come at once"),
]  # fmt: skip


class TestQuantizedKV(Exercise):
    """Keys and values in few bits"""

    name = "QuantizedKV"
    reference = "minitrain.inference.plain.reference:QuantizedKV"
    hidden = HIDDEN

    def draw(self, heads, count, size, bits, group):
        """k and v (K, n, C) none of whose codes is near a tie."""

        def settle(z, dim):
            """Each number is moved away from ties; the ends of a range stay."""
            out = z.clone()
            for start in range(0, count // group * group, group):
                tile = z[:, start : start + group].double()
                low, high = tile.amin(dim, keepdim=True), tile.amax(dim, keepdim=True)
                step = (high - low).clamp(min=1e-30) / (2**bits - 1)
                code = (tile - low) / step
                moved = code.round() + (code - code.round()).clamp(-0.35, 0.35)
                out[:, start : start + group] = (moved * step + low).float()
            return out

        k = torch.randn(heads, count, size) + 3 * torch.randn(heads, 1, size)
        return settle(k, 1), settle(torch.randn(heads, count, size), 2)

    def compare(self, submission, cases):
        """cases: (options, k, v, parts, turns after which it is read)."""
        got = submission.run(probes.cached_in_bits, cases)
        reads = []  # (what was read, k, v, bits, group, parts so far)
        for (options, k, v, parts, turns), notes in zip(cases, got):
            for turn, note in enumerate(notes):
                expect.that(note["unchanged"], "append has changed k or v: they are the caller's")
                if turn in turns:
                    reads.append((note, k, v, *(options or (8, 32)), parts[: turn + 1]))
        causes = [words for way, words in KV if all(self.explains(way, *read) for read in reads)]
        for note, k, v, bits, group, parts in reads:
            told = f"{bits} bits, groups of {group}, parts of {parts}: keys and values"
            result, want = note["read"], restored(k, v, bits, group, parts)
            full = sum(parts) // group * group
            if not causes and self.explains({}, note, k, v, bits, group, parts, full=full):
                words = (
                    "full groups are right, and what differs are the newest tokens: they stay whole"
                )
            else:
                words = ", or ".join(causes)
            hints = [(result, words)] if words else []
            if any(torch.as_tensor(one).isnan().any() for one in result):
                words = (
                    "NaN: a step of 0 divides nothing, and k and v stay the caller's: `.clone()`"
                )
                hints = [(result, words)]
            expect.equal(list(result), want, tol=1e-4, what=told, hints=hints)
            words = "what `read` had given was changed by a later call: give tensors of their own"
            expect.that(all(map(torch.equal, result, note["later"])), f"{told}: {words}")

    def explains(self, way, note, *case, full=None):
        """Whether this mistake gives what was read; full: of the first tokens alone."""
        both = ([z[:, :full] for z in side] for side in (note["read"], restored(*case, **way)))
        return difference(*both, 1e-4) is None

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
        self.compare(submission, cases)
        k, v = torch.randn(2, 2, 8, 3).unbind(0)
        k[:, :, 1], v[:, 2] = 5.0, -2.0  # ranges of one number
        (notes,) = submission.run(probes.cached_in_bits, [((4, 8), k, v, [8], [0])])
        keys, values = notes[0]["read"]
        alike = "that are all alike in their range"
        expect.equal(keys[:, :, 1], k[:, :, 1], tol=1e-6, what=f"keys {alike}")
        expect.equal(values[:, 2], v[:, 2], tol=1e-6, what=f"values {alike}")

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
        expect.that(
            at["decode", 256] < at["prefill", 256] / 4,
            f"256 tokens: {at['decode', 256]:.1f} FLOPs a byte decoded, {at['prefill', 256]:.1f} of a prompt",
        )

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
        expect.that(
            share["rows of 2,048", 2048] > 0.5,
            f"rows waste {share['rows of 2,048', 2048]:.1%}",
        )
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
        expect.that(
            row["used"] > row["held"],
            f"{row['held']:,} places hold {row['used']:,} tokens of texts",
        )


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
        expect.that(
            steps["random chunks"] > 2 * steps["continuous"],
            f"{steps['random chunks']} steps in chunks, {steps['continuous']} without",
        )


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
        expect.that(
            least <= whole / 3,
            f"{whole:.3f} s without chunks, {least:.3f} s at the least with them",
        )
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
            expect.that(
                abs(a - b) < 0.02,
                f"{bits} bits by the channel: {a:.4f} nats, {b:.4f} with planted ones",
            )

    @check(points=2, title="8 bits cost nothing; the other way round large channels cost the most")
    def test_order(self, table):
        rows = expect.rows(table, "planted", "bits")
        row = rows[10, 2]
        expect.that(
            row["by_token"] - row["by_channel"] > 0.02,
            f"2 bits, planted: {row['by_channel']:.4f} nats by the channel, {row['by_token']:.4f} the other way",
        )
        eight = rows[10, 8]
        expect.that(
            abs(eight["by_channel"] - eight["whole"]) < 0.01,
            f"8 bits: {eight['by_channel']:.4f} nats, {eight['whole']:.4f} as they are",
        )


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
