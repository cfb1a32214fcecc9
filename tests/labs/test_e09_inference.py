"""The checks of lab e09: an engine's parts, graded on who holds, computes and draws what."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import contextmanager
from itertools import accumulate, combinations, pairwise
from math import prod
from random import Random

import torch

from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import difference
from minitrain.lab.grading.verdicts import as_above, is_right
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
        "repeats": 3, "texts": 12, "requests": 10, "long": 800, "judged": 10,
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


def probabilities(z, temperature, top_k, top_p, way=""):
    """(V,) float64; `way` is a mistake."""
    if temperature == 0 or way == "likeliest":
        return torch.zeros(len(z), dtype=torch.float64).index_fill_(0, z.argmax(), 1.0)
    z = z.double()
    if way == "times":
        z = z * temperature
    elif way not in ("no temperature", "late temperature"):
        z = z / temperature
    ordered, order = z.sort(descending=True)
    p = ordered.softmax(0)
    places = torch.arange(len(z))
    k = len(z) if top_k is None or way == "no k" else top_k + (way == "k + 1") - (way == "k - 1")
    cut = None if way == "no p" else top_p
    if top_k is not None and top_p is not None and way in ("p or k", "k or p"):
        k, cut = (len(z), top_p) if way == "p or k" else (k, None)
    if cut is not None and way in ("p first", "p of all"):
        p = p * (p.cumsum(0) - p < cut)
        cut = None
    p = p * (places < max(k, 1))
    p = p / p.sum()
    if cut is not None:
        reached = p.cumsum(0) if way == "not the crossing one" else p.cumsum(0) - p
        inside = reached <= cut if way == "not the crossing one" else reached < cut
        inside[0] = True
        p = p * inside
    if way == "late temperature":
        p = p ** (1 / temperature)
    p = p / p.sum()
    return torch.zeros_like(p).scatter(0, order, p)


MISTAKES = {
    "likeliest": "the likeliest token was taken each time: above temperature 0 it is drawn",
    "times": "the logits were multiplied by the temperature: they are divided by it",
    "no temperature": "the temperature was left out",
    "late temperature": "the temperature comes first: top-p counts probabilities that it has made",
    "no k": "top-k has cut nothing",
    "k + 1": "top-k has left one token too many",
    "k - 1": "top-k has left one token too few",
    "no p": "top-p has cut nothing",
    "p first": "top-p was counted before top-k: it goes through what top-k has left, scaled up to a sum of 1",
    "not the crossing one": "the token that crosses p was cut off: it stays, so that at least one is left",
    "p or k": "where both are given, top-k has cut nothing",
    "k or p": "where both are given, top-p has cut nothing",
}
DRAWS = 2500
FAR = 0.09  # between what is right and any mistake


class TestSample(Exercise):
    """A token for each request"""

    name = "sample"
    reference = "minitrain.inference.plain.reference:sample"
    hidden = HIDDEN

    def draw(self, settings, ways):
        """Logits (V,) on which each of the mistakes is seen, and none is taken for another."""
        while True:
            z = (3 * torch.rand(7)).float()
            right = probabilities(z, *settings)
            all_of_them = [right, *(probabilities(z, *settings, way) for way in ways)]
            steps = right.sort(descending=True).values.cumsum(0)
            clear = all((a - b).abs().max() > FAR for a, b in combinations(all_of_them, 2))
            near = settings[2] is not None and (steps - settings[2]).abs().min() < 0.01
            if clear and not near and (right[right > 0] > 0.02).all():
                return z

    def one_int_each(self, tokens, count):
        expect.that(
            isinstance(tokens, (list, tuple)) and len(tokens) == count,
            f"got {expect.show(tokens)}, expected a list of {count} ints, one for each request",
        )
        for token in tokens:
            expect.that(
                type(token) is int,
                f"a token is {expect.show(token)}, expected a Python int: `int(…)`",
            )

    def are_drawn(self, submission, cases):
        """cases: (settings, ways). A mistake is named where it explains all of them."""
        batches, drawn = [], []
        for settings, ways in cases:
            z = self.draw(settings, ways)
            seeds = torch.randint(2**40, (DRAWS,)).tolist()
            asked = [(*settings, seed) for seed in seeds]
            batches.append((z.expand(DRAWS, -1).clone(), asked, 1))
            drawn.append((z, *settings))
        got = submission.run(probes.sampled, batches)
        told = [self.shares(*one["tokens"]) for one in got]
        wrong = [case for case, one in enumerate(told) if not self.fits(one, drawn[case])]
        if not wrong:
            expect.that(
                all(one["unchanged"] for one in got), "logits were changed: they are the caller's"
            )
            return
        causes = [
            words
            for way, words in MISTAKES.items()
            if all(self.fits(one, case, way) for one, case in zip(told, drawn))
        ]
        case, words = wrong[0], "\n" + ", or ".join(causes) if causes else ""
        _, *settings = drawn[case]
        expect.that(
            False,
            "temperature {:g}, top_k {}, top_p {}: ".format(*settings)
            + f"of {DRAWS} tokens the shares are {self.digits(told[case])}, and the probabilities "
            f"{self.digits(probabilities(*drawn[case]))}{words}",
        )

    def shares(self, tokens):
        """(V,): how often each was drawn, of all draws."""
        self.one_int_each(tokens, DRAWS)
        counts = Counter(tokens)
        return torch.tensor([counts[i] / DRAWS for i in range(7)], dtype=torch.float64)

    def digits(self, shares):
        return ", ".join(f"{share:.3g}" for share in shares.tolist())

    def fits(self, shares, case, way=""):
        p = probabilities(*case, way)
        spread = 5 * (p * (1 - p) / DRAWS).sqrt() + 1e-9
        return bool(((shares - p).abs() <= spread).all())

    @check(points=2, title="the temperature; 0 takes the likeliest and draws nothing")
    def test_temperature(self, submission):
        hot = 0.5 if torch.rand(()) < 0.5 else 1.7
        self.are_drawn(submission, [((hot, None, None), ["times", "no temperature"])])
        logits = torch.randn(6, 40)
        asked = [(0.0, k, p, 5) for k, p in ((None, None), (3, 0.5)) for _ in range(3)]
        (got,) = submission.run(probes.sampled, [(logits, asked, 2)])
        for tokens in got["tokens"]:
            self.one_int_each(tokens, 6)
            expect.equal(tokens, logits.argmax(1).tolist(), what="tokens at temperature 0")
        expect.that(
            not any(got["moved"]),
            "a greedy request has drawn from its generator: the likeliest token needs no draw",
        )
        expect.that(got["unchanged"], "logits were changed: they are the caller's")

    @check(points=3, title="top-k, then top-p of what is left; the token that crosses p stays")
    def test_cuts(self, submission):
        cases = [
            ((1.0, 3, None), ["no k", "k + 1", "k - 1"]),
            ((1.0, None, 0.6), ["no p", "not the crossing one"]),
            ((1.0, 4, 0.7), ["p first", "no p", "not the crossing one"]),
            ((1.0, 4, 0.7), ["p first", "no k", "not the crossing one"]),
            ((2.5, None, 0.7), ["late temperature", "no temperature", "no p"]),
        ]
        self.are_drawn(submission, cases)
        logits = torch.randn(3, 5)
        asked = [(1.0, 1, None, 1), (1.0, 50, 1e-9, 2), (0.7, 5, 1e-6, 3)]
        (got,) = submission.run(probes.sampled, [(logits, asked, 3)])
        for tokens in got["tokens"]:
            self.one_int_each(tokens, 3)
            expect.equal(
                tokens,
                logits.argmax(1).tolist(),
                what="with top_k 1, or a top_p of nearly 0, tokens",
            )

    @check(points=4, title="a request's tokens depend on its own generator, and on nobody else")
    def test_own_generator(self, submission):
        seeds = torch.randint(2**40, (6,)).tolist()
        logits = torch.randn(6, 300)
        settings = [(1.0, None, None), (0.8, 90, None), (0.0, None, None), (1.2, None, 0.95)]
        settings += [(1.0, 200, 0.9), (1.0, None, None)]
        asked = [(*setting, seed) for setting, seed in zip(settings, seeds)]
        order = torch.randperm(6).tolist()
        alone = [(logits[i : i + 1], asked[i : i + 1], 8) for i in range(6)]
        company = [
            (logits, asked, 8),
            (logits[order], [asked[i] for i in order], 8),
            (logits[1:4], asked[1:4], 8),
        ]
        got = submission.run(probes.sampled, [*alone, *company])
        counts = [1] * 6 + [6, 6, 3]
        for one, count in zip(got, counts):
            for tokens in one["tokens"]:
                self.one_int_each(tokens, count)
            expect.that(
                one["everybody"],
                "torch's global generator was used: hand `generator=request.generator` to whatever "
                "draws",
            )
        own = [[tokens[0] for tokens in one["tokens"]] for one in got[:6]]
        drawing = {i: name for i, name in enumerate("ABCDEF") if settings[i][0] > 0}
        for i, name in drawing.items():
            told = f"request {name}, alone, was told {own[i]} in eight turns with the same logits"
            expect.that(
                got[i]["moved"][0],
                f"{told}, and its generator has not moved: hand `generator=request.generator`, itself, to "
                "whatever draws, so that it goes on from turn to turn",
            )
            expect.that(
                len(set(own[i])) > 1,
                f"{told}: its generator must go on from turn to turn, not begin anew",
            )
        still = [name for i, name in drawing.items() if not got[6]["moved"][i]]
        expect.that(
            not still,
            f"in a batch of six the generators of {', '.join(still)} have not moved: each request draws from its "
            "own generator, whoever else is in the batch",
        )
        whole = [[tokens[i] for tokens in got[6]["tokens"]] for i in range(6)]
        turned = [[tokens[order.index(i)] for tokens in got[7]["tokens"]] for i in range(6)]
        some = [[tokens[i - 1] for tokens in got[8]["tokens"]] for i in (1, 2, 3)]
        for i, name in enumerate("ABCDEF"):
            told = "in a batch of six, in another order and alone"
            expect.that(
                own[i] == whole[i] == turned[i],
                f"request {name} was told {whole[i]}, {turned[i]} and {own[i]} {told}: whoever else "
                "is in the batch must not matter, neither their temperature, top_k and top_p nor their draws. Cut "
                "by its own settings, and draw for it from its own generator alone, as often as for one",
            )
        expect.equal(some, own[1:4], what="three of the six, in a batch of their own")
        expect.that(
            all(one["unchanged"] for one in got), "logits were changed: they are the caller's"
        )


# --- cached_attention


def attended(weights, size, x, parts, kv_heads, way=""):
    """Outputs, keys and values (B, K, T, C) of a whole text; `way` is a mistake."""
    q, k, v, o = weights
    split = lambda z: z.unflatten(-1, (-1, size))  # noqa: E731
    count = x.shape[1]
    starts = [0]
    for part in parts[:-1]:
        starts.append(starts[-1] + part)
    at = torch.arange(count)
    if way == "from 0":
        at = torch.cat([torch.arange(part) for part in parts])
    turned_k = probes.turned(split(x @ k.T), at)
    turned_q = probes.turned(split(x @ q.T), at)
    keys, values = turned_k.transpose(1, 2), split(x @ v.T).transpose(1, 2)
    plain = split(x @ k.T).transpose(1, 2)
    queries = turned_q.transpose(1, 2)
    times = queries.shape[1] // kv_heads
    if way == "heads":
        spread = [z.repeat(1, times, 1, 1) for z in (keys, values)]
    else:
        spread = [z.repeat_interleave(times, 1) for z in (keys, values)]
    scores = queries @ spread[0].transpose(2, 3)
    scores = scores if way == "no scale" else scores / size**0.5
    place = torch.arange(count)
    start = torch.cat([torch.full((n,), s) for n, s in zip(parts, starts)])
    end = torch.cat([torch.full((n,), s + n) for n, s in zip(parts, starts)])
    seen = place <= place[:, None]
    if way == "all of the chunk":
        seen = place < end[:, None]
    elif way == "all of the chunk, but at first":
        seen = torch.where((start > 0)[:, None], place < end[:, None], seen)
    elif way == "top left":
        seen = (place <= (place - start)[:, None]) & (place < end[:, None])
    elif way == "top left, but one by one":
        single = (end - start == 1)[:, None]
        seen = (place <= (place - torch.where(single[:, 0], 0, start))[:, None]) & (
            place < end[:, None]
        )
    elif way == "not itself":
        seen = place < place[:, None]
    shares = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    out = shares.nan_to_num(0.0) @ spread[1]  # token 0 reads nothing, where it may not read itself
    return out.transpose(1, 2).flatten(2) @ o.T, keys, values, plain


ATTENTION = {
    "from 0": "positions begin at 0 in every call: the first new token stands at place `length`",
    "all of the chunk": "a new token has read those behind it: inside a chunk the mask is causal too",
    "top left": "the first query was lined up with the first key, as `is_causal=True` does: new token i "
    "reads all places up to length + i",
    "heads": "a query head has read another one's keys: query head h reads h // (H/K), so "
    "`repeat_interleave`, or `enable_gqa=True`",
    "no scale": "the scores lack 1/√C",
    "not itself": "a new token has read what stands before it, and not itself: it reads its own place, too",
}
ATTENTION["all of the chunk, but at first"] = ATTENTION["all of the chunk"]
ATTENTION["top left, but one by one"] = ATTENTION["top left"]


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
        out, keys, values, plain = attended(weights, size, x, parts, kv_heads)
        for part, one in zip(out.split(parts, dim=1), got["outs"]):
            expect.that(
                isinstance(one, torch.Tensor) and one.shape == part.shape,
                f"{told}: got {expect.show(one)}, expected a tensor {tuple(part.shape)}",
            )
        self.are_kept(case, got, (keys, values, plain), told)
        whole = torch.cat(got["outs"], dim=1)
        expect.that(not whole.isnan().any(), f"{told}: the output has NaN: {self.why_nan(whole)}")
        hints = [
            (attended(weights, size, x, parts, kv_heads, way)[0], words)
            for way, words in ATTENTION.items()
        ]
        expect.equal(
            whole,
            out,
            what=f"the output ({told})",
            hints=[*hints, (whole, self.where(whole, out, parts))],
        )
        expect.that(got["unchanged"], "x was changed: it is the caller's")

    def are_kept(self, case, got, want, told):
        weights, size, x, parts, _, kv_heads = case
        keys, values, plain = want
        count, first = x.shape[1], parts[0]
        held = {name: got[name][:, :, :count] for name in ("keys", "values")}
        for name, z in held.items():
            expect.that(
                not z.isnan().all(),
                f"{told}: nothing was written into `{name}`: write at places length … length + T - 1",
            )

        def at_the_front(z):
            kept, start = torch.full_like(z, torch.nan), 0
            for part in parts:
                kept[:, :, :part] = z[:, :, start : start + part]
                start += part
            return kept

        def misplaced(z):
            only_first = torch.cat(
                [z[:, :, :first], torch.full_like(z[:, :, first:], torch.nan)], 2
            )
            return [
                (
                    only_first,
                    "only the first call's are there: write behind what is kept, at `length`",
                ),
                (
                    at_the_front(z),
                    "each call has written at the front: write behind what is kept, at `length`",
                ),
            ]

        expect.equal(held["keys"], keys, what=f"keys that are kept ({told})", hints=[
            (plain, "they are kept unturned: turn a key before it is kept, and never again"),
            (attended(weights, size, x, parts, kv_heads, "from 0")[1], ATTENTION["from 0"]),
            *misplaced(keys),
        ])  # fmt: skip
        expect.equal(held["values"], values, what=f"values that are kept ({told})", hints=[
            (probes.turned(values.transpose(1, 2), torch.arange(count)).transpose(1, 2),
             "they are turned: only queries and keys are"),
            *misplaced(values),
        ])  # fmt: skip
        for z in (got["keys"], got["values"]):
            expect.that(
                z[:, :, count:].isnan().all(),
                f"{told}: places behind the new tokens were written: they are rubbish, and stay so",
            )

    def why_nan(self, whole):
        """whole (B, n, D), some of it NaN."""
        of_token = whole.isnan().flatten(2).any(-1).any(0)
        if of_token.all() and len(of_token) > 1:
            return (
                "what lies behind the new tokens was read. Masked or not, 0 · NaN is NaN: attend to the "
                "first length + T places only"
            )
        return (
            f"at tokens {of_token.nonzero().flatten().tolist()} of each text. A softmax over no place at all is NaN: every token "
            "reads all places up to its own, and its own"
        )

    def where(self, got, want, parts):
        """In words, the first token that is wrong."""
        bad = [difference(got[:, i], want[:, i]) is not None for i in range(sum(parts))]
        place, part = bad.index(True) if True in bad else 0, 0
        number = place
        while number >= parts[part]:
            number, part = number - parts[part], part + 1
        kept = place - number
        return f"the first token that is wrong has place {place}: number {number} of a call of {parts[part]}, with {kept} kept"

    @check(
        points=3, title="a whole prompt at once: turned keys and values kept, and causal attention"
    )
    def test_prompt(self, submission):
        self.compare(
            submission,
            [
                self.draw(1, (6,), 2, 2, 4),
                self.draw(3, (1,), 2, 2, 4),
                self.draw(2, (9,), 3, 3, 2, torch.float32),
            ],
        )

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
        at_once = self.draw(2, (6,), 2, 2, 4)
        with as_above(lambda: self.compare(submission, [at_once])):
            self.compare(submission, cases)

    @check(points=3, title="fewer heads of keys; each token is projected and turned once")
    def test_grouped(self, submission):
        cases = [
            self.draw(2, (3, 1, 4), 4, 2, 4),
            self.draw(1, (5, 2), 6, 1, 2),
            self.draw(3, (2, 1), 6, 3, 4),
        ]
        plain = [self.draw(2, (6,), 4, 4, 4), self.draw(2, (3, 1, 4), 4, 4, 4)]
        with as_above(lambda: self.compare(submission, plain)):
            got = self.compare(submission, cases)
        for case, one in zip(cases, got):
            texts, parts = len(case[2]), case[3]
            for name in "qkvo":
                rows = sum(prod(shape[:-1]) for n, shape in one["projected"] if n == name)
                seen, given = rows / texts, "x" if name != "o" else "…"
                expect.that(
                    seen == sum(parts),
                    f"layer.{name} was called with {seen:g} tokens a text, and the text has {sum(parts)}: call "
                    f"layer.{name}({given}) on each token once",
                )
            tokens = sum(shape[1] for shape, _ in one["turned"])
            expect.that(
                tokens <= 2 * sum(parts),
                f"rope was given {tokens} tokens, in {len(parts)} parts of {parts}: of each of the "
                f"{sum(parts)} tokens one query and one key are turned, once ({texts} texts)",
            )


# --- Pool


COUNTED = {
    "look": "a list, one count for each block: at first nobody holds any",
    "take": "a block that is taken is held once",
    "hold": "`hold` is one text more",
    "again": "`hold` is one text more, of a free block too",
    "drop": "`drop` is one text less",
    "name": "a name changes no count",
    "find": "who is found is not held yet",
}

SAID = {"again": "`hold` of a block that was free"}


class PoolModel:
    """What a pool may do; what it does wrong is said."""

    def __init__(self, size):
        self.refs, self.keys, self.clock = [0] * size, {}, 0
        self.left = [0] * size  # when its last holder left
        self.taken, self.woken, self.ever_named = {}, set(), set()

    def free(self):
        return [block for block, count in enumerate(self.refs) if count == 0]

    def take(self, name, got):
        free = self.free()
        if not free:
            expect.that(got is None, f"all blocks are held, and take() gave {got}: None")
            return
        expect.that(got is not None, f"take() gave None, and {len(free)} blocks are free")
        expect.that(
            type(got) is int and 0 <= got < len(self.refs),
            f"take() gave {expect.show(got)}, expected a block from 0 to {len(self.refs) - 1}",
        )
        expect.that(
            self.refs[got] == 0,
            f"take() gave block {got}, which {plural(self.refs[got], 'text')} "
            f"{'holds' if self.refs[got] == 1 else 'hold'}: its content would be lost. "
            + self.why_free(got),
        )
        named = {block: key for key, block in self.keys.items()}
        bare = [block for block in free if block not in named]
        if bare:
            expect.that(
                got in bare,
                f"take() gave block {got}, which can be found by a key, while {plural(len(bare), 'free block')} "
                f"{'has' if len(bare) == 1 else 'have'} none: a block without a key goes first, nothing is lost with it",
            )
        else:
            oldest = min(free, key=self.left.__getitem__)
            newest = max(free, key=self.left.__getitem__)
            words = f"; block {got} was dropped last" if got == newest else ""
            expect.that(
                got == oldest,
                f"take() gave block {got}, and block {oldest} is free for the longest time{words}. The "
                "least recently used goes first, and a block that was held again begins anew",
            )
            del self.keys[named[got]]
        self.refs[got], self.taken[name] = 1, got
        self.woken.discard(got)

    def why_free(self, block):
        if block in self.woken:  # found and held again since it was taken
            return "`hold` must take a free block out of the free ones"
        return "`take` takes it out of the free ones, and the last `drop` alone brings it back"

    def step(self, kind, what, got):
        self.clock += 1
        if kind == "take":
            self.take(what[0], got)
        elif kind == "hold":
            self.refs[self.taken[what[0]]] += 1
        elif kind == "drop":
            block = self.taken[what[0]]
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.left[block] = self.clock
        elif kind == "name":
            self.keys[what[1]] = self.taken[what[0]]
            self.ever_named.add(what[1])
        else:
            self.find(what[0], got)
            if kind == "again":
                block = self.taken[what[1]] = self.keys[what[0]]
                self.refs[block] += 1
                self.woken.add(block)

    def find(self, key, got):
        want = self.keys.get(key)
        told = f"find({key!r}) gave {expect.show(got)}, expected "
        if want is None:
            words = "nothing has had this key"
            if key in self.ever_named:
                words = (
                    "the block was taken for other content, and its old key must be forgotten then"
                )
            expect.that(got is None, f"{told}None: {words}")
            return
        words = "a block keeps its key when nobody holds it, until it is taken"
        if self.refs[want] > 0:
            words = "a block is found when it is held, too"
        if key == 0:
            words += "; a key may be anything, also 0"
        expect.that(got == want, f"{told}block {want}: {words}")


@contextmanager
def looking():
    """For what is right without the `find`."""
    try:
        yield
    except CheckFailed as failure:
        raise CheckFailed(
            f"{str(failure).partition('. ')[0]}. Without a `find` before it that is right: `find` holds nothing, "
            "and leaves the order as it is"
        ) from None


class TestPool(Exercise):
    """Blocks, counted and found"""

    name = "Pool"
    reference = "minitrain.inference.plain.reference:Pool"
    hidden = HIDDEN

    def follow(self, submission, scripts):
        """Each operation of each script, against the model."""
        got = submission.run(probes.pooled, scripts)
        for script, notes in zip(scripts, got):
            try:
                self.judge(script, notes)
            except CheckFailed as failure:
                seen, expected, _ = str(failure).partition("gave None, expected block 0")
                if expected and self.is_right_without_0(submission, *script):
                    raise CheckFailed(
                        f"{seen}{expected}: where block 0 stays out of it, all is right. 0 is a block as "
                        "any other: only `None` says that there is none"
                    ) from None
                raise

    def is_right_without_0(self, submission, size, operations):
        """Whether a pool with one block more, of which 0 is taken first, does the same rightly."""
        script = (size + 1, [("take", "spare"), *operations])
        (notes,) = submission.run(probes.pooled, [script])
        return notes[1][0] == 0 and is_right(self.judge, script, notes)

    def judge(self, script, notes):
        size, operations = script
        model = PoolModel(size)
        for number, ((kind, *what), note) in enumerate(zip([("look",), *operations], notes)):
            result, refs, available = note
            if kind != "look":
                model.step(kind, what, result)
            shown = f"after {number} operations on {size} blocks"
            expect.equal(
                refs,
                model.refs,
                what=f"refs, {shown}, the last of them {SAID.get(kind, kind)}",
                hints=[(refs, COUNTED[kind])],
            )
            expect.that(
                available == len(model.free()),
                f"available() is {expect.show(available)} {shown}, the last of them {SAID.get(kind, kind)}: "
                f"{plural(len(model.free()), 'block')} held by nobody",
            )

    @check(points=2, title="counts: what is held is never given out")
    def test_counts(self, submission):
        few = [("take", "a"), ("take", "b"), ("hold", "a"), ("drop", "a"), ("take", "c"), ("take", "d"),
               ("drop", "b"), ("take", "e"), ("take", "f"), ("drop", "a"), ("drop", "c"),
               ("take", "g"), ("take", "h"), ("take", "i")]  # fmt: skip
        self.follow(
            submission,
            [(3, few), (1, [("take", "a"), ("take", "b"), ("drop", "a"), ("take", "c")])],
        )

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
        self.follow(submission, [(2, operations), (1, [*zero]), (2, [*zero])])

    @check(points=3, title="order: first without a key, then free for the longest time")
    def test_order(self, submission):
        draw = drawn_random()
        names = "abcdef"
        fill = [("take", n) for n in names] + [("name", n, f"key {n}") for n in names]
        order = draw.sample(names, 6)
        dropped = [("drop", n) for n in order]
        takes = [("take", str(k)) for k in range(6)]
        lru = [*fill, *dropped, ("again", f"key {order[0]}", "z"), ("drop", "z"), *takes]
        bare = [("take", n) for n in names] + [("name", n, f"key {n}") for n in order[:3]]
        bare += [("drop", n) for n in draw.sample(names, 6)] + [("take", str(k)) for k in range(6)]
        again = [*fill, *[("drop", n) for n in order]]
        again += [("again", f"key {n}", n.upper()) for n in order[2:4]]
        again += [("take", "0"), ("take", "1"), *[("drop", n.upper()) for n in order[2:4]]]
        again += [("take", str(k)) for k in range(2, 6)]
        self.follow(submission, [(6, lru), (6, bare), (6, again)])
        self.follow(submission, [(6, [*fill, *dropped, *takes])])
        with looking():
            self.follow(submission, [(6, [*fill, *dropped, ("find", f"key {order[0]}"), *takes])])

    @check(points=1, title="random traffic")
    def test_traffic(self, submission):
        self.follow(submission, [(size, self.traffic(size, drawn_random())) for size in (1, 4, 9)])

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
        small, large = submission.run(probes.timed, [1000, 100_000])
        expect.that(
            large < 12 * small + 5e-5,
            f"holding and dropping free blocks took {large / small:,.0f} times as long in a pool of 100,000 "
            "blocks as in one of 1,000: something searches through the free ones. An OrderedDict "
            "finds any of them at once",
        )


# --- BlockManager


def content(adapter, tokens, count):
    """What the first `count` tokens of a text are, to be compared."""
    return adapter, tuple(tokens[:count])


class Watch:
    """Follows a manager's notes: what each block holds, and who may read and write it."""

    def __init__(self, num_blocks, size, operations, in_order):
        self.size, self.free = size, num_blocks
        self.operations, self.in_order = operations, in_order  # the tail is dropped first
        self.texts = {}  # name -> [adapter, tokens, computed, table]
        self.holds = defaultdict(dict)  # block -> offset -> content up to there
        self.found = {}  # block -> content it is named by
        self.of_key, self.keys = {}, {}  # key -> content, block -> key
        self.reused = set()  # blocks that had other content before
        self.available = num_blocks
        self.lately = []

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

    def shape(self, note, told):
        """Counts are those of the tables."""
        counts = Counter(block for table in note["tables"].values() for block in table)
        for block, refs in enumerate(note["refs"]):
            expect.that(
                refs == counts[block],
                f"{told}: block {block} is in {counts[block]} tables and its count is {refs}: "
                + (
                    "a text that uses it must hold it"
                    if refs < counts[block]
                    else "give back what no table names"
                ),
            )
        self.available = note["available"]

    def known(self, adapter, tokens):
        """The findable blocks of a beginning, without the last token's."""
        blocks = []
        by_content = {what: block for block, what in self.found.items()}
        for index in range((len(tokens) - 1) // self.size):
            block = by_content.get(content(adapter, tokens, (index + 1) * self.size))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def admit(self, name, tokens, most, adapter, *rest):
        note = rest[-1]
        size, told = self.size, f"admit of {len(tokens)} tokens, {most} at most"
        blocks = self.known(adapter, tokens)
        best = len(blocks) * size
        total = -(-min(len(tokens), best + most) // size)
        refs = self.refs_before()
        asleep = sum(refs[block] == 0 for block in blocks)
        needed = total - len(blocks) + asleep
        got = note["result"]
        if needed > self.available:
            expect.that(
                got is None,
                f"{told}: {needed} blocks are needed and {self.available} are free, so None was expected, and it "
                f"gave a table{self.twice(asleep, needed)}",
            )
            self.nothing_changed(note, told)
            return
        expect.that(
            type(got) is int,
            f"{told}: got {got}, expected a table (a list) and how many tokens are known: {needed} blocks "
            f"are needed, and {self.available} are free",
        )
        table = note["tables"][name]
        for place in range(min(got, len(table) * size)):
            held = self.holds[table[place // size]].get(place % size)
            expect.that(
                held == content(adapter, tokens, place + 1),
                f"{told}: {got} tokens are said to be known, and block {table[place // size]} holds "
                + self.whose(held, adapter, tokens, place)
                + self.remembered(table[: place // size + 1]),
            )
        expect.that(
            got < len(tokens),
            f"{told}: all {got} tokens are said to be known: the last one is always computed, for its "
            "logits are wanted",
        )
        words = "nothing was found" if got == 0 else f"only {got} tokens were found"
        expect.that(
            got <= best,
            f"{told}: {got} tokens are said to be known, expected {best}: known are whole blocks that can be "
            "found, and the block of the last token is none of them",
        )
        expect.that(
            got == best,
            f"{told}: {words}, and {best} tokens are in blocks that can be found: the chain goes on as long "
            "as full blocks are known, by the keys that `commit` has made",
        )
        expect.that(
            len(table) == total,
            f"{told}, {got} known: the table has {len(table)} blocks of {size}, expected {total}: room for "
            f"the known and for {most} more, if there are so many",
        )
        self.texts[name] = [adapter, list(tokens), got, table]
        self.shape(note, told)

    def twice(self, asleep, needed):
        """The likely cause, where it is certain that known blocks decide."""
        if not asleep or needed - asleep > self.available:
            return ""
        return (
            f". Of the free ones {asleep} {'holds' if asleep == 1 else 'hold'} its known tokens, and the table "
            "needs these: count the free ones without them"
        )

    def whose(self, held, adapter, tokens, place):
        if held is None:
            return f"nothing at token {place}: it was never computed"
        if held[0] != adapter and held[1] == tuple(tokens[: place + 1]):
            words = f"another adapter's at token {place}: the adapter belongs to the chain"
            is_zero = {held[0], adapter} == {0, None}
            return words + (", and 0 is an adapter as any other: only None is none" * is_zero)
        if held[1][-1:] == (tokens[place],):
            return (
                f"an equal token after another beginning at token {place}: a key is made of the key of the "
                "block before, too"
            )
        return f"another text's at token {place}"

    def remembered(self, blocks):
        """What may be wrong, too, where one of them had other content before."""
        if not self.reused.intersection(blocks):
            return ""
        return ". If you remember blocks' keys: a block that is taken anew has lost its own, also one for a copy"

    def refs_before(self):
        return Counter(block for *_, table in self.texts.values() for block in table)

    def nothing_changed(self, note, told):
        counts = self.refs_before()
        want = [counts[block] for block in range(len(note["refs"]))]
        more = any(now > before for now, before in zip(note["refs"], want))
        words = "what was held or taken on the way is given back" if more else "more was given back"
        expect.equal(
            note["refs"],
            want,
            what=f"{told}, blocks are missing, nothing changes: refs",
            hints=[(note["refs"], words if more else f"{words} than was held")],
        )
        lost = set(self.found) - {block for block, _ in note["found"]}
        expect.that(
            not lost,
            f"{told}: blocks are missing and it gave None, but blocks {sorted(lost)} were taken on the way, and "
            "can no longer be found: count first, take then",
        )

    def grow(self, name, note):
        _, _, _, before = self.texts[name]
        start, stop, size = note["start"], note["stop"], self.size
        told = f"grow from {start} to {stop}, blocks of {size}"
        counts = self.refs_before()
        written = range(start // size, min(-(-stop // size), len(before)))
        shared = [before[index] for index in written if counts[before[index]] > 1]
        needed = max(0, -(-stop // size) - len(before)) + len(shared)
        got, table = note["result"], note["tables"][name]
        if needed > self.available:
            expect.that(
                got is None, f"{told}: {needed} blocks are needed and {self.available} free: None"
            )
            self.nothing_changed(note, told)
            expect.equal(table, before, what=f"{told}, nothing changes: the table")
            return False
        expect.that(
            isinstance(got, list),
            f"{told}: got {got}, expected a list of copies: {needed} blocks are needed, and "
            f"{self.available} are free",
        )
        expect.that(
            len(table) == max(len(before), -(-stop // size)),
            f"{told}: the table has {len(table)} blocks, expected {max(len(before), -(-stop // size))}",
        )
        for index in written:
            now = table[index]
            others = sum(now in t for other, (*_, t) in self.texts.items() if other != name)
            expect.that(
                others == 0,
                f"{told}: block {now} is written, and {plural(others, 'other text')} "
                f"{'holds' if others == 1 else 'hold'} it: copy on write, the writer gets a block of its own",
            )
        want = [(block, table[before.index(block)]) for block in shared]
        expect.equal(
            sorted(map(tuple, got)), sorted(want), what=f"{told}: copies, from and to",
            hints=[([(b, a) for a, b in want], "those are the wrong way round: (from, to)"),
                   ([], "the new block is empty: its place in `copies` is missing")],
        )  # fmt: skip
        for source, own in want:
            if self.holds[own]:
                self.reused.add(own)
            self.holds[own] = dict(self.holds[source])
            self.found.pop(own, None)
        for block in table[len(before) :]:
            self.found.pop(block, None)
        self.texts[name][3] = table
        self.shape(note, told)
        return True

    def commit(self, name, note):
        text = self.texts[name]
        adapter, tokens, _, table = text
        start, stop, size = note["start"], note["stop"], self.size
        told = f"commit after tokens {start} to {stop - 1}, blocks of {size}"
        for place in range(start, stop):
            block = table[place // size]
            if place % size == 0:
                if self.holds[block]:
                    self.reused.add(block)
                self.holds[block].clear()
                self.found.pop(block, None)
            self.holds[block][place % size] = content(adapter, tokens, place + 1)
        text[2] = stop
        for block, key, length in note["named"]:
            held = self.holds[block]
            expect.that(
                block in table and len(held) == size and (table.index(block) + 1) * size <= stop,
                f"{told}: block {block} got a key, and it is not full of computed tokens: only full blocks "
                "can be found",
            )
            what = held[size - 1]
            expect.that(
                self.of_key.setdefault(key, what) == what,
                f"{told}: two different beginnings have got the same key: "
                + self.alike(self.of_key[key], what)
                + self.remembered(table),
            )
            expect.that(
                length <= 300,
                f"{told}: a key has {length} characters, written out: it grows with the text. `digest` of the "
                "parent's key and the block's own tokens stays as short as it is",
            )
            self.found[block], self.keys[block] = what, key
        for index in range(start // size, stop // size):
            what = content(adapter, tokens, (index + 1) * size)
            expect.that(
                what in self.found.values(),
                f"{told}: block {index} of the text is full and computed, and cannot be found"
                + (self.remembered(table[: index + 1]) or self.unnamed(text, index, stop)),
            )
        self.shape(note, told)
        for what in self.found.values():
            twins = [other for other in self.found if self.found[other] == what]
            one_key = len({self.keys[twin] for twin in twins}) == 1
            expect.that(
                len(twins) == 1,
                f"{told}: the same content was named twice: "
                + (
                    "where the pool finds the key already, leave the second block without one"
                    if one_key
                    else "its keys differ, and equal beginnings have equal keys"
                    + self.remembered(twins)
                ),
            )

    def unnamed(self, text, index, stop):
        adapter, tokens, _, table = text
        before = [content(adapter, tokens, (i + 1) * self.size) for i in range(index)]
        twins = [i for i, what in enumerate(before) if self.found.get(table[i]) != what]
        if twins and all(what in self.found.values() for what in before):
            return (
                f": block {twins[-1]} before it has no key, for another block with its content has it, and that "
                "concerns this one block: the chain goes on behind it, by the same key"
            )
        if index < stop // self.size - 1:
            return ": one call names all blocks that have become full"
        if stop % self.size:
            return ": it is full, though the block behind it is not"
        return ""

    def alike(self, one, other):
        if one[1] == other[1]:
            return "the same tokens under two adapters, so put the adapter into the chain"
        if one[1][-self.size :] != other[1][-self.size :]:
            return f"the one ends in the tokens {list(one[1][-self.size :])}, the other in {list(other[1][-self.size :])}"
        return "a block's own tokens are alike, not what comes before, so chain the keys"

    def fork(self, name, child, note):
        adapter, tokens, computed, table = self.texts[name]
        expect.that(
            not note["same"],
            "fork gave the parent's own list: a second text has a table of its own",
        )
        expect.equal(note["tables"][child], table, what="the fork's table")
        self.texts[child] = [adapter, list(tokens), computed, list(table)]
        self.shape(note, "fork")

    def end(self, name, note):
        *_, table = self.texts.pop(name)
        expect.that(
            note["after"] == [], f"after release the table is {note['after']}: empty it, in place"
        )
        self.shape(note, "release")
        expect.that(
            sorted(note["dropped"]) == sorted(table),
            f"release of {table} dropped {note['dropped']}: each of its blocks once",
        )
        expect.that(
            note["dropped"] == table[::-1] or not self.in_order,
            f"release of {table} dropped them in the order {note['dropped']}: the tail first, for nothing finds "
            "a tail whose beginning was taken",
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


def by_the_rule(way=""):
    """A schedule; `way` is a mistake."""

    def schedule(running, waiting, manager, budget, most_running):
        state = {"left": budget, "preempted": [], "work": [], "copies": []}
        if way == "waiting first":
            admit(running, waiting, manager, most_running, state, way)
        go_on(running, waiting, manager, state, way)
        if way == "youngest in front":
            for _ in state["preempted"]:
                waiting.popleft()
            waiting.extendleft(reversed(state["preempted"]))
        if way != "waiting first" and not (state["preempted"] and way != "admits all the same"):
            admit(running, waiting, manager, most_running, state, way)
        return state["work"], state["copies"]

    return schedule


def go_on(running, waiting, manager, state, way):
    index, done = 0, {id(request) for request, _ in state["work"]}
    if way == "least first":
        running.sort(key=lambda request: len(request.tokens) - request.computed)
    while index < len(running) and (state["left"] or way == "no budget"):
        request = running[index]
        if id(request) in done:
            index += 1
            continue
        missing = len(request.tokens) - request.computed
        count = missing if way == "no budget" else min(missing, state["left"])
        if way == "one token":
            count = 1
        if way == "whole or nothing" and count < missing:
            break
        found = manager.grow(request.table, request.computed, request.computed + count)
        while found is None and count > 1 and way in ("half", "one less"):
            count = count // 2 if way == "half" else count - 1
            found = manager.grow(request.table, request.computed, request.computed + count)
        if found is None:
            if way == "waits for blocks":
                index += 1
                continue
            victim = running.pop(0 if way == "the oldest" else index if way == "itself" else -1)
            manager.release(victim.table)
            if way != "computed stays":
                victim.computed = 0
            state["preempted"].append(victim)
            waiting.append(victim) if way == "at the end" else waiting.appendleft(victim)
            continue
        state["work"].append((request, count))
        state["copies"] += [] if way == "no copies" else found
        state["left"] -= count
        index += 1


def admit(running, waiting, manager, most_running, state, way):
    place = 0
    while place < len(waiting) and state["left"] > 0:
        if len(running) >= most_running and way != "no places":
            break
        request = waiting[place]
        left = state["left"]
        if way == "whole or nothing" and len(request.tokens) > left:
            break
        most = len(request.tokens) if way == "all its blocks" else left
        admitted = manager.admit(
            request.tokens, most, None if way == "no adapter" else request.adapter
        )
        if admitted is None:
            if way == "overtakes":
                place += 1
                continue
            break
        request.table, request.computed = admitted
        if way == "computes the known":
            request.computed = 0
        del waiting[place]
        running.append(request)
        count = min(len(request.tokens) - request.computed, left)
        state["work"].append((request, count))
        state["left"] -= count + (request.computed if way == "the known costs" else 0)


SCHEDULES = {
    "waiting first": "who waits was served before who runs: who runs comes first, or answers stand still",
    "no budget": "the budget was exceeded: a step computes at most `budget` tokens",
    "whole or nothing": "a prompt that does not fit was left out: it is cut, and gets what is left of the budget",
    "one token": "who runs got one token: a prompt that is not computed to its end gets what is left of the budget",
    "waits for blocks": "a request without a block was passed over: the youngest must give its blocks back",
    "the oldest": "the oldest was preempted: the youngest is, so that the oldest always goes on",
    "itself": "the request that lacked a block was preempted itself: the youngest that runs is",
    "computed stays": "a preempted request kept its `computed`: its blocks are gone, so it is 0",
    "at the end": "a preempted request waits at the end: it waits in front of all others, it came before them",
    "youngest in front": "of two that were preempted in one step the younger waits in front of the older: it waits "
    "in front of all others, and the older, which goes later, in front of it",
    "admits all the same": "this step has preempted a request, and then admitted one: the blocks just won are gone again",
    "overtakes": "a later request had its turn while an earlier one waits: nobody overtakes",
    "no places": "more than `most_running` run at once",
    "no copies": "copies that `grow` asked for are missing",
    "no adapter": "`admit` was not told the request's adapter",
    "computes the known": "what `admit` found was computed again: `computed` is what it says is known",
    "half": "a request without a block got fewer tokens, so that they fit: blocks change no count, they preempt the youngest",
    "least first": "who lacks least came first: who runs comes in order of age, the oldest first, and `running` stays so",
    "the known costs": "known tokens were taken off the budget: it is for what the step computes, the counts alone",
    "all its blocks": "`admit` was asked for more tokens than this step computes: what is left of the budget",
}
SCHEDULES["one less"] = SCHEDULES["half"]


def whole(trace):
    return trace


def unasked(trace):
    """The steps without what `admit` was asked."""
    return [{name: value for name, value in step.items() if name != "asked"} for step in trace]


def unordered(trace):
    """The steps without questions, with each step's work as a set."""
    return [{**step, "work": sorted(step["work"])} for step in unasked(trace)]


class TestSchedule(Exercise):
    """One rule for every step"""

    name = "schedule"
    reference = "minitrain.inference.plain.reference:schedule"
    hidden = HIDDEN

    def follow(self, submission, cases):
        got = submission.run(probes.served, cases)
        want = probes.served(by_the_rule(), cases)
        for case, ours, theirs in zip(cases, want, got):
            if ours == theirs:
                continue
            step, why = self.first_difference(ours, theirs)
            words = self.cause(cases, want, got) or self.guess(ours, theirs, step, case)
            sizes = (
                "{num_blocks} blocks of {size}, budgets {budgets}, {most_running} places".format(
                    **case
                )
            )
            expect.that(False, f"{sizes}, step {step + 1}: {why}{words and chr(10) + words}")

    def cause(self, cases, want, got):
        """The mistakes that give the very steps of all cases; if none, but for what shows less."""
        traces = {way: probes.served(by_the_rule(way), cases) for way in SCHEDULES}
        for part in (whole, unasked, unordered):
            theirs = [part(trace) for trace in got]
            if theirs == [part(trace) for trace in want]:
                return ""
            found = [
                SCHEDULES[way]
                for way, steps in traces.items()
                if [part(trace) for trace in steps] == theirs
            ]
            if found:
                return ", or ".join(dict.fromkeys(found))
        return ""

    def first_difference(self, ours, theirs):
        for step, (a, b) in enumerate(zip(ours, theirs)):
            for name, words in {
                "work": "the work, (request, tokens), is",
                "copies": "the copies are",
                "running": "who runs then, with `computed`, is",
                "waiting": "who waits then, with `computed`, is",
                "asked": "`admit` was asked (first token, most, adapter)",
                "free": "the manager's free blocks are",
            }.items():
                if a[name] != b[name]:
                    return step, f"{words} {b[name]}, expected {a[name]}"
        return min(
            len(ours), len(theirs)
        ) - 1, f"there are {len(theirs)} steps, expected {len(ours)}"

    def guess(self, ours, theirs, step, case):
        """What is certain of a step that no known mistake explains: all before it was right."""
        if step >= min(len(ours), len(theirs)):
            return ""
        right, note = ours[step], theirs[step]
        work, due = dict(note["work"]), dict(right["work"])
        waits, runs = dict(note["waiting"]), dict(note["running"])
        before = [name for name, _ in ours[step - 1]["running"]] if step else []
        gone = [name for name in before if name in waits]
        new = [name for name in runs if name not in before]
        overtaken = [name for name, _ in right["running"] if name in waits and name not in gone]
        both = [name for name in work if name in waits and name not in due]
        kept = [name for name in gone if waits[name] != 0]
        starved = [name for name in before if name in runs and work.get(name, 0) < due.get(name, 0)]
        served = any(name in before for name in due)
        if sum(count for count in work.values() if count > 0) > note["budget"]:
            return SCHEDULES["no budget"]
        if len(runs) > case["most_running"]:
            return SCHEDULES["no places"]
        if any(count < 1 for count in work.values()):
            return "counts are above 0: leave out who computes nothing"
        if both:
            return (
                f"request {both[0]} waits after this step, and got work in it: who is preempted gets none, "
                "also where the loop comes to it again"
            )
        if kept:
            return f"request {kept[0]} is preempted: {SCHEDULES['computed stays']}"
        if gone and new:
            return SCHEDULES["admits all the same"]
        if gone and note["asked"] and not right["asked"]:
            return f"request {gone[0]} is preempted in this step: then nobody is admitted, so do not ask `admit`"
        lost = [name for name in before if name in dict(right["waiting"])]
        if lost and not gone:
            return f"a block is missing, so request {lost[-1]} must go in this step, with all its blocks, and nobody's count is made smaller"
        if overtaken and any(name not in dict(right["running"]) for name in new):
            return SCHEDULES["overtakes"]
        if new and starved:
            return f"request {starved[0]} ran before, {new[0]} has waited: {SCHEDULES['waiting first']}"
        for older, younger in combinations([name for name in before if name in runs], 2):
            if older in starved and work.get(younger, 0) > due.get(younger, 0):
                return f"request {older} is older than {younger}, and got less than is due: the oldest comes first"
        if served and note["asked"] and note["asked"][0][1] == note["budget"]:
            return "who runs comes first, and `admit` is asked for what is left of the budget then"
        return ""

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


def ends(parts, group, way=""):
    """Where the tokens that are rounded together end."""
    count = sum(parts)
    if way == "append":  # all that one append completes
        return sorted({stop // group * group for stop in accumulate(parts)} - {0})
    if way == "waits":  # until a token more is there
        count -= 1
    return list(range(group, count + 1, group))


def restored(k, v, bits, group, parts, way=""):
    """What `read` gives of k and v (K, n, C), n tokens in parts; `way` is a mistake."""
    k, v = k[:, : sum(parts)], v[:, : sum(parts)]
    if way == "nothing":
        return [k, v]
    dims = {"turned": (2, 1), "tokens": (2, 2), "channels": (1, 1)}.get(way, (1, 2))
    stops = [0, *ends(parts, group, way)]
    out = []
    for z, dim in zip((k, v), dims):
        own = [z[:, a:b] for a, b in pairwise(stops)]
        if way == "one range":
            own = [rounded(part.reshape(1, 1, -1), 2, bits).view(part.shape) for part in own]
        elif way == "across heads":
            own = [rounded(part.transpose(0, 1).flatten(1)[None], dim, bits)[0]
                   .unflatten(1, (len(k), -1)).transpose(0, 1) for part in own]  # fmt: skip
        else:
            own = [rounded(part, dim, bits) for part in own]
        rest = z[:, stops[-1] :]
        if way == "all" and rest.shape[1]:
            rest = rounded(rest, dim, bits)
        out.append(torch.cat([*own, rest], dim=1))
    return out[::-1] if way == "values first" else out


KV = {
    "turned": "keys and values are exchanged: keys share a range by the channel, values by the token",
    "tokens": "keys were rounded by the token: a large channel takes the levels from all others",
    "channels": "values were rounded by the channel: by the token, no channel of theirs is large",
    "one range": "a group shares one range: keys have one for each channel, values one for each token",
    "across heads": "heads share a range: each head of a group has its own",
    "all": "the newest tokens were rounded, before their group is complete: they stay whole",
    "waits": "a full group was not rounded until one more token came: it is as soon as it has `group` tokens",
    "append": "groups that one append has completed share a range: each group has its own, however many come at once",
    "nothing": "nothing was rounded: a full group is held as codes",
    "values first": "`read` gives keys first, then values",
}


class TestQuantizedKV(Exercise):
    """Keys and values in few bits"""

    name = "QuantizedKV"
    reference = "minitrain.inference.plain.reference:QuantizedKV"
    hidden = HIDDEN

    def draw(self, heads, count, size, bits, group):
        """k and v (K, n, C) none of whose codes is near a tie."""

        def ratios(z, dim):
            tiles = [z[:, a : a + group].double() for a in range(0, count // group * group, group)]
            for tile in tiles:
                low, high = tile.amin(dim, keepdim=True), tile.amax(dim, keepdim=True)
                yield tile, low, (high - low).clamp(min=1e-30) / (2**bits - 1)

        def settle(z, dim):
            """Each number is moved away from ties; the ends of a range stay."""
            out = z.clone()
            for place, (tile, low, step) in enumerate(ratios(z, dim)):
                code = (tile - low) / step
                whole = code.round()
                moved = whole + (code - whole).clamp(-0.35, 0.35)
                out[:, place * group : (place + 1) * group] = (moved * step + low).float()
            return out

        k = torch.randn(heads, count, size) + 3 * torch.randn(heads, 1, size)
        v = torch.randn(heads, count, size)
        return settle(k, 1), settle(v, 2)

    def compare(self, submission, cases):
        """cases: (options, k, v, parts, turns after which it is read)."""
        got = submission.run(probes.cached_in_bits, cases)
        reads = []  # (what was read, k, v, bits, group, parts so far)
        for (options, k, v, parts, turns), notes in zip(cases, got):
            bits, group = options or (8, 32)
            for turn, note in enumerate(notes):
                expect.that(note["unchanged"], "append has changed k or v: they are the caller's")
                if turn in turns:
                    reads.append((note, k, v, bits, group, parts[: turn + 1]))
        for note, *case in reads:
            self.is_right(note, *case, reads)

    def is_right(self, note, k, v, bits, group, parts, reads):
        told = f"{bits} bits, groups of {group}, parts of {parts}"
        result, want = note["read"], restored(k, v, bits, group, parts)
        expect.that(
            isinstance(result, (tuple, list)) and len(result) == 2,
            f"read gave {expect.show(result)}, expected keys and values",
        )
        for one, right, name in zip(result, want, ("keys", "values")):
            expect.that(
                isinstance(one, torch.Tensor) and one.shape == right.shape,
                f"{name}, {told}: got {expect.show(one)}, expected {tuple(right.shape)}",
            )
            why = "the caller has written over the k and v of an append, and `read` shows it: keep what is yours, `.clone()`"
            if group == 1:
                why = "it has NaN. A range of one number has a step of 0, and 0 / 0 is NaN"
            expect.that(not one.isnan().any(), f"{name}, {told}: {why}")
            if difference(one, right, 1e-4) is not None:
                causes = [KV[way] for way in KV if self.explains(way, reads)]
                full = sum(parts) // group * group
                if not causes and difference(one[:, :full], right[:, :full], 1e-4) is None:
                    causes = [
                        "full groups are right, and what differs are the newest tokens: they stay whole"
                    ]
                hints = [(one, ", or ".join(causes))] if causes else []
                expect.equal(one, right, tol=1e-4, what=f"{name}, {told}", hints=hints)
        for early, later in zip(result, note["later"]):
            expect.that(
                torch.equal(early, later),
                f"{told}: what `read` had given was changed by a later call: give tensors of their own",
            )

    def explains(self, way, reads):
        """Whether this mistake gives all that was read."""
        return all(
            difference(list(note["read"]), restored(*case, way), 1e-4) is None
            for note, *case in reads
        )

    @check(points=1, title="full groups: keys by the channel, values by the token")
    def test_groups(self, submission):
        cases = []
        for heads, count, size, bits, group in (
            (2, 8, 4, 4, 8),
            (1, 12, 6, 8, 4),
            (3, 10, 2, 2, 5),
            (2, 32, 4, 3, 16),
        ):
            k, v = self.draw(heads, count, size, bits, group)
            cases.append(((bits, group), k, v, [count], [0]))
        self.compare(submission, cases)

    @check(points=1, title="in parts: rounded once, when a group is full; the newest stay whole")
    def test_parts(self, submission):
        cases = []
        for parts, bits, group in (
            ([1] * 9, 4, 4),
            ([3, 6, 1, 10, 2], 2, 5),
            ([7, 30, 1], 8, 8),
            ([2, 1], 4, 6),
            ([5, 3], 4, 1),
        ):
            k, v = self.draw(2, sum(parts), 4, bits, group)
            cases.append(((bits, group), k, v, parts, list(range(len(parts)))))
        k, v = self.draw(1, 40, 4, 8, 32)
        cases.append(((), k, v, [20, 20], [0, 1]))
        self.compare(submission, cases)
        k, v = torch.randn(2, 2, 8, 3).unbind(0)
        k[:, :, 1], v[:, 2] = 5.0, -2.0  # ranges of one number
        (notes,) = submission.run(probes.cached_in_bits, [((4, 8), k, v, [8], [0])])
        for one, given, name in zip(notes[0]["read"], (k[:, :, 1], v[:, 2]), ("keys", "values")):
            part = one[:, :, 1] if name == "keys" else one[:, 2]
            expect.equal(part, given, tol=1e-6, what=f"{name} that are all alike in their range")

    def held(self, submission, count, parts):
        """What is held by heads 2, size 16, groups of 32: its bytes, and what they must be."""
        heads, size, group = 2, 16, 32
        k, v = torch.randn(2, heads, count, size).unbind(0)
        got = submission.run(probes.held_in_bits, (8, group), k, v, parts)
        full = count // group
        codes = 2 * heads * size * group * full
        expect.that(
            got["numbers"] >= 2 * heads * size * count and got["bytes"] >= 0.9 * codes,
            f"{got['bytes']:,} bytes were seen to be held, and codes alone have {codes:,}: hold tensors "
            "in attributes, and compute with PyTorch's operations, in its sight",
        )
        ranges = 8 * heads * full * (size + group)
        return got, codes + ranges + 2 * 4 * heads * size * group  # room for a group, some keep it

    @check(points=4, title="tokens that come one by one: floats are gone when their group is full")
    def test_codes(self, submission):
        count = 32 * 5 + 7
        got, want = self.held(submission, count, [1] * count)
        whole = 2 * 4 * 2 * 16 * count
        words = "codes of a byte" if got["bytes"] < 0.9 * whole else "codes, no floats"
        expect.that(
            got["bytes"] <= 1.3 * want,
            f"{count} tokens: {got['bytes']:,} bytes are held, as floats they would be {whole:,}, as codes "
            f"{want:,}. A full group is held as {words}, with its ranges",
        )

    @check(
        points=2, title="held is nothing else: no slice of a large tensor, nothing that was read"
    )
    def test_bytes(self, submission):
        count = 32 * 9 + 5
        for parts in ([count], [100, 3, count - 103]):
            got, want = self.held(submission, count, parts)
            told = f"{count} tokens in parts of {parts}: {got['bytes']:,} bytes are held. "
            if got["bytes"] > 1.02 * want:
                one, least = self.held(submission, count, [1] * count)
                expect.that(
                    one["bytes"] <= 1.3 * least, f"as above: {told}That is too much one by one, too"
                )
            expect.that(
                got["bytes"] <= 1.02 * want,
                f"{told}Codes, ranges and a group of newest tokens are {want:,}. A slice keeps all of its tensor "
                "alive: `.clone()` it",
            )
            expect.that(
                got["after"] <= 1.02 * want,
                f"after `read` {got['after']:,} bytes are held, before it {got['bytes']:,}: what it restores is "
                "the reader's, do not keep it",
            )


# --- experiments


def by(table, *columns):
    return {tuple(row[column] for column in columns): row for row in table}


def found(rows, *key):
    expect.that(key in rows, f"there is no row of {key}")
    return rows[key]


class TestRoofline(Experiment):
    """Prefill and decode under the roof"""

    name = "roofline"
    rests_on = ("cached_attention",)

    @check(
        points=2, title="a prompt's intensity rises with its tokens; a batch of answers has a limit"
    )
    def test_intensity(self, table):
        rows = by(table, "kind", "tokens")
        at = {key: row["flops"] / row["bytes"] for key, row in rows.items()}
        for kind in ("prefill", "decode"):
            values = [found(at, kind, n) for n in (1, 4, 16, 64, 256)]
            told = ", ".join(f"{value:.2f}" for value in values)
            expect.that(all(a < b for a, b in pairwise(values)), f"{kind}: {told} FLOPs a byte")
        expect.close(at["decode", 1], 0.53, tol=0.1, what="FLOPs a byte of one decoded token")
        expect.that(
            at["decode", 256] < at["prefill", 256] / 4,
            f"256 tokens: {at['decode', 256]:.1f} FLOPs a byte decoded, {at['prefill', 256]:.1f} of a prompt",
        )

    @check(points=1, title="tokens that come together cost less each")
    def test_seconds(self, table):
        rows = by(table, "kind", "tokens")
        for kind in ("prefill", "decode"):
            one, many = (found(rows, kind, n)["seconds"] / n for n in (1, 64))
            expect.that(many < one / 2, f"{kind}: {one:.2g} s a token alone, {many:.2g} s in 64")


class TestWaste(Experiment):
    """Memory reserved and used"""

    name = "waste"
    rests_on = ("Pool", "BlockManager")

    @check(points=3, title="small pages waste a few percent, rows more than half")
    def test_waste(self, table):
        rows = by(table, "way", "size")
        share = {key: 1 - row["used"] / row["held"] for key, row in rows.items()}
        expect.that(
            found(share, "rows of 2,048", 2048) > 0.5,
            f"rows waste {share['rows of 2,048', 2048]:.1%}",
        )
        sizes = [found(share, "pages", size) for size in (256, 64, 32, 16, 8, 1)]
        expect.that(
            all(a > b for a, b in pairwise(sizes)) and abs(sizes[-1]) < 1e-9 and sizes[3] < 0.04,
            f"pages of 256, 64, 32, 16, 8, 1 waste {', '.join(f'{s:.1%}' for s in sizes)}",
        )
        used = {row["used"] for row in table if "common" not in row["way"]}
        expect.that(len(used) == 1, f"the ways use {sorted(used)} places: the same texts for all")

    @check(points=1, title="a common beginning is held once")
    def test_common(self, table):
        row = found(by(table, "way", "size"), "pages, 96 tokens in common", 16)
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
        rows = by(table, "mode", "tokens by")
        for kind, names in (
            ("greedy", ("naive", "cached", "static batch", *self.NAMES)),
            ("a draw", self.NAMES),
        ):
            hashes = {name: found(rows, name, kind)["hash"] for name in names}
            common = Counter(hashes.values()).most_common(1)[0][0]
            other = [name for name, value in hashes.items() if value != common]
            expect.that(not other, f"{kind}: {', '.join(other)} told other tokens than the rest")
        expect.that(
            found(rows, "continuous", "greedy")["hash"]
            != found(rows, "continuous", "a draw")["hash"],
            "what was drawn is what greedy told: temperature 0.9 must draw",
        )

    @check(points=2, title="and the modes did what their names say")
    def test_happened(self, table):
        rows = by(table, "mode", "tokens by")
        preempted = found(rows, "preempted", "greedy")["preemptions"]
        expect.that(preempted >= 20, f"{preempted} preemptions: at least 20, make the pool smaller")
        reused = found(rows, "prefix shared", "greedy")["reused"]
        expect.that(reused > 0, "no token was found in another's block")
        steps = {
            name: found(rows, name, "greedy")["steps"] for name in ("continuous", "random chunks")
        }
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
        rows = by(table, "way")
        ways = ("naive", "a cache", "static batches", "continuous")
        speed = {way: found(rows, way)["tokens"] / found(rows, way)["seconds"] for way in ways}
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
        rows = by(table, "way")
        static, ours = (found(rows, way) for way in ("static batches", "continuous"))
        told = f"{static['last_50']:.3f} s in static batches, {ours['last_50']:.3f} s in continuous ones"
        expect.that(0 < ours["first_50"] <= ours["last_50"] < static["last_50"] * 1.1, told)


class TestChunks(Experiment):
    """A long prompt, in chunks"""

    name = "chunks"
    rests_on = ("sample", "Pool", "BlockManager", "schedule")

    @check(points=3, title="chunks cut the pause between tokens to a third and less")
    def test_pause(self, table):
        rows = by(table, "budget")
        expect.that(len(table) >= 5, f"{len(table)} budgets: at least 5")
        whole, least = found(rows, 4096)["gap_99"], min(row["gap_99"] for row in table)
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
        rows = by(table, "planted", "bits")
        plain, large = found(rows, 1, 8), found(rows, 10, 8)
        expect.close(
            large["whole"], plain["whole"], tol=1e-3, what="the loss with planted channels"
        )
        for bits in (8, 4, 3, 2):
            a, b = (found(rows, factor, bits)["by_channel"] for factor in (1, 10))
            expect.that(
                abs(a - b) < 0.02,
                f"{bits} bits by the channel: {a:.4f} nats, {b:.4f} with planted ones",
            )

    @check(points=2, title="8 bits cost nothing; the other way round large channels cost the most")
    def test_order(self, table):
        rows = by(table, "planted", "bits")
        row = found(rows, 10, 2)
        expect.that(
            row["by_token"] - row["by_channel"] > 0.02,
            f"2 bits, planted: {row['by_channel']:.4f} nats by the channel, {row['by_token']:.4f} the other way",
        )
        eight = found(rows, 10, 8)
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
        rows = by(expect.recorded(records, "chunks"), "budget")
        whole = found(rows, 4096)["gap_99"]
        fits = [budget for (budget,), row in rows.items() if row["gap_99"] <= whole / 3]
        half = [budget for (budget,), row in rows.items() if row["gap_99"] <= whole / 2]
        expect.that(
            fits, "no budget of your table cuts the pause to a third: record it again, undisturbed"
        )
        expect.close(value, max(fits), tol=1e-6, what="the budget", hints=[
            (min(fits), "that is the smallest: the largest that is at most a third"),
            (max(half), "its 99th percentile is above a third of that without chunks"),
        ])  # fmt: skip
