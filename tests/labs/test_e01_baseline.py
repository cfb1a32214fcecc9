"""The checks of lab e01: a model, its costs on paper, and one device's best."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import difference
from minitrain.lab.grading.verdicts import as_above, in_a_row
from minitrain.measure.parameters import parameter_count
from minitrain.measure.predicted_memory import predict_memory
from minitrain.model.config import PRESETS, ModelConfig
from minitrain.words import plural

from .probes import e01_baseline as probes

LAB = "e01_baseline"
SIZES = {
    "cpu": {
        "preset": "1M", "steps": 160, "batch": 8, "length": 128, "corpus_bytes": 3_000_000,
        "held_out_bytes": 25_000,
        "grid": [[4, 128], [16, 128], [64, 128], [16, 32], [16, 256]],
        "own_width": 20, "own_layers": 1, "own_tokens": 250_000,
    },
    "test": {
        "steps": 60, "batch": 4, "corpus_bytes": 300_000, "held_out_bytes": 3_000,
        "grid": [[2, 64], [4, 64], [8, 64], [4, 16], [4, 128]], "own_tokens": 125_000,
    },
    "gpu": {"preset": "30M", "batch": 32, "length": 256},
    "multi": {},
}  # fmt: skip


def predicted_ratio(config, batch, length):
    """Bytes of activations over those of parameters, gradients and optimizer."""
    sizes = predict_memory(config, batch, length)
    return sizes["activations"] / sum(sizes[k] for k in ("parameters", "gradients", "optimizer"))


REVEALS = {
    "parameters": Reveal(
        "measured",
        "the numbers in the built model's tensors",
        formula=lambda config: parameter_count(config),
    ),
    "above": Reveal(
        "measured",
        "loss / floor - 1; `python -m minitrain train` brings it below 0.1 in two minutes",
    ),
    "ratio": Reveal("measured", "by the ledger; the formula is predict_memory", predicted_ratio),
}
F64 = torch.float64
IGNORED = -100
NO_GRADIENT = "no gradient comes to {}: nothing may be detached (`detach`, `.data`, `no_grad`)"


def rounded(got: Any, want: Any) -> list[tuple[Any, str]]:
    """A hint where float64 is right, but for what float32 would round."""
    if difference(got, want, 2e-5) is not None:
        return []
    words = "right to 5 digits and not to 10, as where float32 is on the way: keep the dtype that is given"
    return [(got, words)]


def hints_of(given: dict[str, Any]) -> list[tuple[Any, str]]:
    """given: a mistake's words, and what it gives; a tuple of several."""
    several = {
        words: wrong if isinstance(wrong, tuple) else (wrong,) for words, wrong in given.items()
    }
    return [(each, words) for words, wrong in several.items() for each in wrong]


def whole(low, high):
    """A whole number from low to high - 1, drawn anew at each check."""
    return int(torch.randint(low, high, (1,)))


def configs():
    """The shapes that the counts are graded on: tied and not, one layer, H·C above and below D."""
    made = []
    for tied, layers, kv, groups in [
        # 3 is also a step over its forward; 2 makes H - K heads as many as K
        (False, whole(2, 6), whole(2, 4), 2 * whole(2, 4)),
        (True, whole(2, 6), 1, whole(2, 5)),
        (False, 1, whole(1, 4), 1),
        (True, whole(6, 9), whole(1, 4), whole(2, 4)),
    ]:
        size = 2 * whole(4, 9)
        width = size * kv * groups + whole(1, 7) * (1 if tied else -1)
        made.append(
            ModelConfig(whole(50, 200), width, layers, kv * groups, kv, whole(30, 90), tied=tied, head_size=size)
        )  # fmt: skip
    return made


def siblings(c):
    """Models that are other than c in one number each."""
    for name, more in [("vocab_size", 7), ("hidden_size", 3), ("layers", 1), ("heads", c.kv_heads),
                       ("head_size", 2), ("ffn_size", 5)]:  # fmt: skip
        yield replace(c, **{name: getattr(c, name) + more})
    yield replace(c, kv_heads=1)
    yield replace(c, tied=not c.tied)


def rounded_up(c):
    """In words: a vocabulary of more rows than it has; and the model that has them."""
    for multiple in (8, 16, 32, 64, 128, 256):
        rows = -(-c.vocab_size // multiple) * multiple
        words = f"the vocabulary is counted as {rows}, a multiple of {multiple}: V is `config.vocab_size` as it is"
        yield words, replace(c, vocab_size=rows)


def told(c):
    """A configuration in the words of the text."""
    letters = f"V {c.vocab_size}, D {c.hidden_size}, L {c.layers}, H {c.heads}, K {c.kv_heads}"
    return f"{letters}, C {c.head_size}, F {c.ffn_size}, {'tied' if c.tied else 'not tied'}"


def embedding(c):
    return c.vocab_size * c.hidden_size


def attention_weights(c, kv=None, size=None):
    kv = c.kv_heads if kv is None else kv
    return 2 * c.hidden_size * (size or c.head_size) * (c.heads + kv)


def mlp_weights(c, matrices=3):
    return matrices * c.hidden_size * c.ffn_size


def square_weights(c):
    """q and o as if H·C were D."""
    return 2 * c.hidden_size * (c.hidden_size + c.kv_heads * c.head_size)


def as_wide_as_the_model(c):
    """All four matrices with heads of D / H numbers, rounded down before or after, or for k and v alone."""
    numbers = 2 * c.hidden_size * (c.heads + c.kv_heads)
    exact = numbers * c.hidden_size / c.heads
    rounded_first = numbers * (c.hidden_size // c.heads)
    mixed = 2 * c.hidden_size * (c.hidden_size + c.kv_heads * (c.hidden_size // c.heads))
    return exact, int(exact), rounded_first, mixed


def parameters_of(c, kv=None, size=None, matrices=3, norms=2, tied=None):
    tied = c.tied if tied is None else tied
    layer = attention_weights(c, kv, size) + mlp_weights(c, matrices) + norms * c.hidden_size
    return embedding(c) * (1 if tied else 2) + c.layers * layer + (c.hidden_size if norms else 0)


def matmul_weights(c):
    return c.layers * (attention_weights(c) + mlp_weights(c)) + embedding(c)


def attention_flops(c, length):
    return 4 * c.layers * c.heads * c.head_size * length


def flops_of(c, length):
    return 3 * (2 * matmul_weights(c) + attention_flops(c, length))


def microbatches(counted, shape=(3, 4)):
    """(tokens, targets, documents, positions) of each, with so many targets that count."""
    made, place = [], torch.arange(shape[1])
    for count in counted:
        tokens, targets = torch.randint(11, shape), torch.full(shape, IGNORED)
        targets.view(-1)[torch.randperm(targets.numel())[:count]] = torch.randint(11, (count,))
        second = place >= 2  # two documents a row
        documents, positions = second.long(), place - 2 * second
        made.append((tokens, targets, *(z.expand(shape).clone() for z in (documents, positions))))
    return made


def counts_of(batches):
    return [int((targets != IGNORED).sum()) for _, targets, *_ in batches]


def gradients_of(batches, weights, scale=1.0, where=lambda *where: where, targets=lambda y: y):
    """Gradients of the weighted sum of each microbatch's summed loss."""
    model = probes.tiny(scale)
    loss = 0.0
    for (tokens, y, *places), weight in zip(batches, weights):
        logits = model(tokens, *where(*places))
        loss = loss + weight * F.cross_entropy(
            logits.flatten(0, 1), targets(y).flatten(), ignore_index=IGNORED, reduction="sum"
        )
    loss.backward()
    return [p.grad for p in model.parameters()]


def shifted(targets):
    """Each place's target is the next place's."""
    return F.pad(targets[:, 1:], (0, 1), value=IGNORED)


def norm_of(gradients):
    return torch.stack([g.square().sum() for g in gradients]).sum().sqrt().item()


def times(gradients, others):
    """How many times as long as others, along them; never 0."""
    along = sum((g * other).sum().item() for g, other in zip(gradients, others))
    return along / norm_of(others) ** 2 or 1e-30


def clipped(gradients, limit):
    return [g * min(1.0, limit / (norm_of(gradients) + 1e-6)) for g in gradients]


class TestRotate(Exercise):
    """Rotary position embedding"""

    name = "rotate"
    reference = "minitrain.model.rope:rotate"
    hidden = ("minitrain/model/rope.py",)

    def turns(self, angles):
        """cos and sin of angles (T, C/2), as they are given: (T, 1, C) each."""
        cos, sin = angles[:, None].cos(), angles[:, None].sin()
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)

    def rotated(self, x, cos, sin):
        (a, b), c, s = x.chunk(2, -1), cos.chunk(2, -1)[1], sin.chunk(2, -1)[1]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def calls(self):
        shapes = [(2, 5, 3, 8), (1, 1, 1, 2), (2, 7, 2, 4), (3, 4, 1, 6), (2, 5, 3, 8)]
        made = []
        for shape, dtype in zip(shapes, [F64, F64, torch.float32, F64, F64]):
            angles = 6 * torch.rand(shape[1], shape[3] // 2, dtype=dtype)
            made.append((torch.randn(shape, dtype=dtype), *self.turns(angles)))
        return made

    @check(
        points=6, title="each half-split pair is turned by its angle, in every shape; gradients too"
    )
    def test_values(self, submission):
        calls = self.calls()
        in_a_row(partial(self.right, submission), calls)
        with expect.because({"does not require grad": NO_GRADIENT.format("x")}):
            found = submission.run(probes.turned_gradients, calls)
        for (x, cos, sin), (gradient,) in zip(calls, found):
            x = x.clone().requires_grad_()
            self.rotated(x, cos, sin).pow(3).sum().backward()
            expect.that(gradient is not None, NO_GRADIENT.format("x"))
            expect.equal(gradient, x.grad, tol=1e-4, what="the values are right; the gradient of x")

    def right(self, submission, calls):
        """The values, and that nothing else was changed."""
        rows = submission.run(probes.turned, calls)
        for (x, cos, sin), row in zip(calls, rows):
            want = self.rotated(x, cos, sin)
            expect.equal(
                row["out"],
                want,
                what=f"x of shape {tuple(x.shape)}",
                hints=[*self.likely(x, cos, sin), *rounded(row["out"], want)],
            )
        expect.left_alone(rows, calls, ["x", "turns.cos", "turns.sin"])

    def likely(self, x, cos, sin):
        """What likely mistakes give, and their words."""
        (a, b), c, s = x.chunk(2, -1), cos.chunk(2, -1)[1], sin.chunk(2, -1)[1]
        p, q = x.unflatten(-1, (-1, 2)).unbind(-1)
        swapped = [torch.stack([sign * q, p], -1).flatten(-2) for sign in (1, -1)]
        half, turned = x.shape[-1] // 2, lambda other: x * cos + other * sin
        return hints_of(
            {
                "it turns the other way: (a·cos - b·sin, b·cos + a·sin); `sin` has its first half negated "
                "already": self.rotated(x, cos, -sin),
                "that pairs numbers 2i and 2i+1: here the pairs are i and i + C/2, the two halves": (
                    torch.stack([p * c - q * s, q * c + p * s], -1).flatten(-2),
                    *map(turned, swapped),
                ),
                "the first half must be a·cos - b·sin, and has a plus: either the minus came twice (`turns.sin` has it "
                "already, so give it (b, a) and not (-b, a)), or the sin of the second half was taken, which "
                "has none": torch.cat([a * c + b * s, b * c + a * s], -1),
                "right only where sin φ is positive: the second half of `turns.sin` is sin φ as it is, "
                "no `abs`": torch.cat([a * c - b * s.abs(), b * c + a * s.abs()], -1),
                "`roll` without `dims` rolls all numbers as one row: dims=-1": turned(x.roll(half)),
                "`flip` turns the order around: each half keeps its own": turned(x.flip(-1)),
                "x·sin must take the *other* half of x: roll by C/2": turned(x),
                "the sin part is missing": x * cos,
                "the cos part is missing": x.roll(half, -1) * sin,
                "that is x as it came: nothing was turned": x,
            }
        )

    @check(points=2, title="the product of a query and a key depends on their distance alone")
    def test_distance(self, submission):
        turns = self.turns(torch.arange(6)[:, None] * torch.rand(4, dtype=F64).add(0.1))
        q, k = torch.randn(2, 1, 1, 1, 8, dtype=F64).expand(2, 1, 6, 1, 8).clone()
        rows = submission.run(probes.turned, [(q, *turns), (k, *turns)])
        for row in rows:
            is_alike = isinstance(row["out"], torch.Tensor) and row["out"].shape == q.shape
            expect.that(is_alike, "the result must have x's shape")
        with as_above(partial(self.right, submission, self.calls())):
            products = rows[0]["out"][0, :, 0] @ rows[1]["out"][0, :, 0].T  # (T, T)
            for apart in (1, 2):
                found = products.diagonal(offset=apart)
                expect.equal(
                    found,
                    found[:1].expand_as(found),
                    tol=1e-9,
                    what=f"q·k for tokens {apart} apart, at {len(found)} places (all must be equal)",
                )
            one, two = products[0, 1].item(), products[0, 2].item()
            expect.that(
                abs(one - two) > 1e-9,
                "q·k is the same for tokens one apart and two apart: their positions do not show in it",
            )


class TestAttention(Exercise):
    """Grouped-query attention"""

    name = "grouped_query_attention"
    reference = "minitrain.model.attention.grouped_query:attention_naive"
    hidden = tuple(
        f"minitrain/model/attention/{name}.py" for name in ("grouped_query", "tiled", "triton")
    )

    def oracle(self, q, k, v, causal=True, repeat="interleave", scale=None):
        times = q.shape[1] // k.shape[1]
        if repeat == "interleave":
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        else:
            k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

    def written(self, q, k, v, weights):
        """weights(scores): of all tokens, the future too."""
        k, v = (z.repeat_interleave(q.shape[1] // k.shape[1], 1) for z in (k, v))
        return weights(q @ k.mT / q.shape[-1] ** 0.5) @ v

    def drawn(self, batch, heads, kv, length, size, dtype=F64, factor=1.0):
        """q, k, v; `factor` makes the scores large."""
        q = factor * torch.randn(batch, heads, length, size, dtype=dtype)
        k, v = torch.randn(2, batch, kv, length, size, dtype=dtype)
        return q, factor * k, v

    def calls(self):
        shapes = [(2, 4, 4, 5, 6), (2, 4, 2, 7, 4), (1, 6, 2, 3, 8), (3, 4, 1, 6, 2)]
        shapes += [(2, 2, 1, 1, 3), (1, 8, 2, 9, 1), (2, 4, 2, 7, 4)]
        made = [self.drawn(*shape) for shape in shapes]
        made[1][0][:, :, 1] = made[1][1][:, :, 2] = 0  # a query and a key of zeros: scores of 0
        return [*made, self.drawn(2, 6, 3, 5, 4, torch.float32)]

    def written_out(self, used):
        ready = sorted(name for name in used if "attention" in name)
        expect.that(
            not ready,
            f"it calls the ready-made {', '.join(ready)}: write attention out with plain matmuls and "
            "a softmax, that is the exercise",
        )

    @check(points=7, title="equals PyTorch's attention, for 1 to 4 query heads a key/value head")
    def test_values(self, submission):
        in_a_row(partial(self.right, submission), self.calls())

    def right(self, submission, calls):
        """The values, that nothing else was changed, and that it is not the ready-made one."""
        found = submission.run(probes.attended, calls)
        for (q, k, v), row in zip(calls, found["rows"]):
            want = self.oracle(q, k, v)
            expect.equal(
                row["out"],
                want,
                what=f"{q.shape[1]} heads on {k.shape[1]} key/value heads, {q.shape[2]} tokens",
                hints=[*self.likely(q, k, v), *rounded(row["out"], want)],
            )
        expect.left_alone(found["rows"], calls, "qkv")
        self.written_out(found["used"])

    def likely(self, q, k, v):
        """What likely mistakes give, and their words."""
        (heads, length, size), written = q.shape[1:], partial(self.written, q, k, v)
        itself = self.oracle(q[:, :, 1:], k[:, :, :-1], v[:, :, :-1])
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scaled = partial(self.oracle, q, k, v, True, "interleave")
        masked = lambda scores: scores.masked_fill(future, -torch.inf)  # noqa: E731

        def in_turn(z, of_keys):
            each = heads // z.shape[1]
            right, tiled = (
                (k if not of_keys else v).repeat_interleave(each, 1),
                z.repeat(1, each, 1, 1),
            )
            return self.oracle(q, tiled, right) if of_keys else self.oracle(q, right, tiled)

        return hints_of(
            {
                "nan in the first row: may token 0 see itself? Mask what lies above the diagonal only, "
                "triu(1)": F.pad(itself, (0, 0, 1, 0), value=torch.nan),
                "tokens look into the future: mask the scores above the diagonal (`masked_fill` returns a "
                "new tensor)": self.oracle(q, k, v, causal=False),
                "a score of 0 still weighs exp(0): set the future to -inf before the softmax; token 0 sees itself "
                "alone": written(lambda scores: scores.tril().softmax(-1)),
                "the weights of a row no longer sum to 1: hide the future before the softmax, with "
                "-inf": written(lambda scores: scores.softmax(-1).tril()),
                "tokens see the future and not the past: mask what lies above the diagonal, "
                "triu(1)": self.oracle(q.flip(2), k.flip(2), v.flip(2)).flip(2),
                "query head h must read key/value head h // (H/K): neighbours share (repeat_interleave, not "
                "repeat)": self.oracle(q, k, v, repeat="tile"),
                "the values are dealt out in turn, 0 1 0 1: query head h reads value head h // (H/K), "
                "neighbours share, as of the keys": in_turn(v, of_keys=False),
                "the keys are dealt out in turn, 0 1 0 1: query head h reads key head h // (H/K), "
                "neighbours share, as of the values": in_turn(k, of_keys=True),
                "the scores are not divided by sqrt(C)": scaled(1.0),
                "the scores are divided by C: it must be sqrt(C)": scaled(1.0 / size),
                "the scores are divided by sqrt(T), not sqrt(C)": scaled(length**-0.5),
                "the scores are divided by sqrt(H·C), not sqrt(C)": scaled((heads * size) ** -0.5),
                "the softmax runs over another dimension than the last: a query's weights sum to 1 over its "
                "keys": tuple(written(lambda z, d=d: masked(z).softmax(d)) for d in range(3)),
            }
        )

    @check(points=3, title="its gradients too: queries, keys and values")
    def test_gradients(self, submission):
        calls = [self.drawn(1, 4, 2, 5, 6), self.drawn(2, 3, 3, 4, 2), self.drawn(1, 4, 1, 5, 6)]
        causes = {
            "used in an in-place": "`q /= …` and its like write into the caller's tensor: make a new one, `q = q / …`",
            "does not require grad": NO_GRADIENT.format("q, k and v"),
        }
        with expect.because(causes):
            found = submission.run(probes.attended_gradients, calls)
        with as_above(partial(self.right, submission, calls)):
            for call, gradients in zip(calls, found["rows"]):
                inputs = [z.clone().requires_grad_() for z in call]
                self.oracle(*inputs).pow(3).sum().backward()
                for name, z, got in zip("qkv", inputs, gradients):
                    expect.that(got is not None, NO_GRADIENT.format(name))
                    expect.equal(got, z.grad, tol=1e-8, what=f"gradient of {name}")
            self.written_out(found["used"])

    @check(points=2, title="large scores do not overflow, and nothing of the future leaks in")
    def test_extremes(self, submission):
        calls = [self.drawn(1, 2, 1, 4, 8, factor=300), self.drawn(2, 4, 2, 6, 4, factor=100)]
        found = submission.run(probes.attended, calls)
        small = [(q / q.abs().max(), k / k.abs().max(), v) for q, k, v in calls]
        with as_above(partial(self.right, submission, small)):
            for call, row in zip(calls, found["rows"]):
                expect.equal(
                    row["out"],
                    self.oracle(*call),
                    tol=1e-6,
                    what="small scores are right. Scores of 10,000 and more",
                    hints=self.overflows(row["out"], *call),
                )
            self.written_out(found["used"])

    def overflows(self, out, q, k, v):
        """Hints that only large scores ask for."""
        if not isinstance(out, torch.Tensor) or out.shape != q.shape:
            return
        late = self.written(
            q, k, v, lambda scores: F.normalize(scores.softmax(-1).tril(), 1, -1, 0.0)
        )
        words = "the future took part in the softmax, or in its maximum: where one of its scores is the largest, "
        for each in (late, late.nan_to_num(0.0)):
            yield each, f"{words}nothing is left for the past. Set them to -inf first"
        if not out.isfinite().all():
            words = "inf or nan for large scores: exp(710) is inf, and a sum of exps may be 0. `softmax` takes a row's "
            yield out, f"{words}largest score off first: use softmax, not exp and a division"
        first = v[:, :, :1].repeat_interleave(q.shape[1] // v.shape[1], 1)
        if difference(out[:, :, :1], first, 1e-6) is not None:
            yield (
                out,
                "token 0 sees itself alone, and its row is not v's: the mask must be lower than any score, -inf",
            )


def whole_number(got, what):
    """A count is exact; a float has 53 bits, and a `/` on the way rounds."""
    expect.that(
        not isinstance(got, float),
        f"got {got!r}, a float: {what} are counted, so the result is an int; multiply, and divide with //",
    )


class TestParameterCount(Exercise):
    """Parameters in closed form"""

    name = "parameter_count"
    reference = "minitrain.measure.parameters:parameter_count"
    hidden = ("minitrain/measure/parameters.py",)

    @check(points=5, title="four random shapes, tied and untied, to the last parameter")
    def test_random(self, submission):
        drawn = configs()
        in_a_row(partial(self.right, submission), [*drawn, *siblings(drawn[0])])

    def right(self, submission, drawn):
        """The counts, asked for one after the other."""
        for c, got in zip(drawn, submission.run(probes.answers, [(c,) for c in drawn])):
            whole_number(got, "parameters")
            expect.equal(
                got, parameters_of(c), what=f"parameters of {told(c)}", hints=self.likely(c)
            )

    def likely(self, c):
        """What likely mistakes give, and their words."""
        right, D, C = parameters_of(c), c.hidden_size, c.head_size
        heads = lambda weights: right + c.layers * (weights - attention_weights(c))  # noqa: E731
        return hints_of(
            {
                "keys and values have kv_heads heads, not heads": parameters_of(c, kv=c.heads),
                "that takes H·C = D, which need not be: q and o are D x H·C": heads(
                    square_weights(c)
                ),
                "a head has `head_size` numbers: H·C need not be D": tuple(
                    map(heads, as_wide_as_the_model(c))
                ),
                "one of q and o is missing, D x H·C each": right - c.layers * D * C * c.heads,
                "o has H heads, as q has, and not the K of k and v: each query head has an output of its own": (
                    right - c.layers * D * C * (c.heads - c.kv_heads)
                ),
                "one of k and v is missing, D x K·C each": right - c.layers * D * C * c.kv_heads,
                "SwiGLU has three matrices: gate, up and down": parameters_of(c, matrices=2),
                "the norms are missing: D each, two a layer and one at the end": parameters_of(
                    c, norms=0
                ),
                "each layer has two norms": parameters_of(c, norms=1),
                "the last norm is missing: D": right - D,
                "a tied head is the embedding itself: count it once if tied, twice if "
                "not": parameters_of(c, tied=not c.tied),
                **{words: parameters_of(other) for words, other in rounded_up(c)},
            }
        )

    @check(points=3, title="Llama 2 7B: 6,738,415,616, and Llama 3 405B: 405,853,388,800")
    def test_published(self, submission):
        models = {"llama2-7b": 6_738_415_616, "llama3-405b": 405_853_388_800}
        got = submission.run(probes.answers, [(PRESETS[name],) for name in models])
        with as_above(self.test_random, submission):
            for (name, want), count in zip(models.items(), got):
                expect.equal(count, want, what=f"parameters of {name}")


class TestFlops(Exercise):
    """FLOPs in closed form"""

    name = "flops_per_token"
    reference = "minitrain.measure.flops:flops_per_token"
    hidden = ("minitrain/measure/flops.py", "minitrain/measure/parameters.py")

    @check(points=5, title="four random shapes and lengths, forward and backward")
    def test_random(self, submission):
        drawn = configs()
        calls = [(c, whole(2, 300)) for c in drawn]
        calls += [(c, calls[0][1]) for c in siblings(drawn[0])]
        calls.append((drawn[0], calls[0][1] + 50))
        in_a_row(partial(self.right, submission), calls)

    def right(self, submission, calls):
        """The counts, asked for one after the other."""
        for (c, length), got in zip(calls, submission.run(probes.answers, calls)):
            whole_number(got, "FLOPs")
            expect.equal(
                got,
                flops_of(c, length),
                what=f"FLOPs a token at length {length} of {told(c)}",
                hints=self.likely(c, length),
            )

    def likely(self, c, length):
        """What likely mistakes give, and their words."""
        weights, attention = matmul_weights(c), attention_flops(c, length)
        want, norms = (
            flops_of(c, length),
            [(2 * c.layers + last) * c.hidden_size for last in (0, 1)],
        )
        with_attention = lambda part: 6 * weights + part  # noqa: E731
        return hints_of(
            {
                "6·P is for large models: the embedding's lookup and the norms multiply nothing, and attention adds QKᵀ "
                "and AV": 6 * parameters_of(c),
                "attention's own products are missing: QKᵀ and AV, 4·L·H·C·T forward": 6 * weights,
                "attention's products are as wide as its heads, H·C, which need not be "
                "D": with_attention(12 * c.layers * c.hidden_size * length),
                "that is the forward alone: backward costs twice as much again": want // 3,
                "backward is two matmuls for each of the forward's: 3 x in all": want // 3 * 2,
                "a multiply-add is 2 FLOPs": want // 2,
                "attention's products are of all H query heads, not of the K shared "
                "ones": with_attention(3 * attention * c.kv_heads // c.heads),
                "attention has a backward too: 3 x its forward": with_attention(attention),
                "a norm is no matmul: leave its weights out": tuple(want + 6 * n for n in norms),
                "the last norm is no matmul either: it scales, and its D weights multiply nothing": (
                    want + 6 * c.hidden_size
                ),
                "those are all parameters: leave out the norms and the embedding's lookup, which are no "
                "matmuls": 6 * parameters_of(c) + 3 * attention,
                "the embedding is a lookup: it multiplies nothing; only the head does": want
                + 6 * embedding(c),
                "the head multiplies, tied or not": want - 6 * embedding(c),
                "attention's part is half of what it must be: QKᵀ and AV take 2·C·T a head each; count attention in "
                "full, though half of it is masked": with_attention(3 * attention // 2),
                "attention's part has the T twice, and one token meets T keys": (
                    with_attention(3 * attention * length)
                ),
                **{words: flops_of(other, length) for words, other in rounded_up(c)},
            }
        )

    @check(points=3, title="twice the length: only attention's part doubles")
    def test_length(self, submission):
        for c in configs()[:2]:
            lengths = [64, 128, 1]
            got = submission.run(probes.answers, [(c, n) for n in lengths])
            with as_above(self.test_random, submission):
                expect.that(all(isinstance(n, (int, float)) for n in got), f"got {got[0]!r}")
                short, long, one = got
                for more, less, name in [(long - short, 64, "64"), (short - one, 63, "one")]:
                    expect.equal(
                        more,
                        less * 3 * attention_flops(c, 1),
                        what=f"{less} tokens more than {name}, of {told(c)}",
                    )


class TestTrainStep(Exercise):
    """A step over microbatches"""

    name = "train_step"
    reference = "minitrain.training.loop:train_step"
    hidden = ("minitrain/training/loop.py", "minitrain/training/loss.py")

    def one_step(self, result):
        expect.that(
            len(result["seen"]) == 1,
            f"optimizer.step() ran {len(result['seen'])} times: once a step, after the last microbatch",
        )
        return result["seen"][0]

    def one_at_a_time(self, batches, events):
        """Each microbatch goes forward and at once backward, so that one graph is alive."""
        most = max(accumulate(1 if kind == "forward" else -1 for kind, _ in events), default=0)
        expect.that(
            most <= 1,
            f"{most} microbatches went forward before one went backward: all their activations are in "
            "memory at once, which microbatches are to avoid. Call backward() after each",
        )
        ran = sorted(shape for kind, shape in events if kind == "forward")
        given = sorted(list(tokens.shape) for tokens, *_ in batches)
        expect.that(
            ran == given,
            f"the model ran on tokens of shapes {ran}, the microbatches have {given}: each goes "
            "through the model once, by itself, since all together do not fit",
        )

    @check(
        points=8,
        title="the gradients of one large batch, with microbatches of unequal counts; only one in memory at a time",
    )
    def test_gradients(self, submission):
        cases = self.cases()
        for batches, result in zip(cases, self.right(submission, cases)):
            if min(counts_of(batches)) > 0:
                self.one_at_a_time(batches, result["events"])
                expect.that(
                    result["alive"] == 0,
                    f"when a microbatch went forward, {plural(result['alive'], 'tensor')} of the ones before were still kept "
                    "for a backward: let each backward free its graph (no retain_graph), and keep no loss "
                    "that has one",
                )
                expect.that(
                    result["outputs"] == 0,
                    f"when a microbatch went forward, the logits of {1 + result['outputs']} microbatches before "
                    "it were still in memory: keep no microbatch's outputs after its backward",
                )

    def cases(self):
        cases = [microbatches(counted) for counted in [(12, 3, 7), (5,), (2, 0, 9, 12), (4, 1)]]
        return [*cases, [*microbatches((9, 2), (2, 5)), *microbatches((7,), (1, 8))]]

    def right(self, submission, cases):
        """What came back; the gradients that the optimizer saw are right."""
        results = submission.run(probes.stepped, [(batches, 1.0, 1e9) for batches in cases])
        for batches, result in zip(cases, results):
            counts = counts_of(batches)
            right = gradients_of(batches, [1 / sum(counts)] * len(counts))
            got = self.one_step(result)
            expect.equal(
                got,
                right,
                tol=1e-9,
                what=f"the gradient that the optimizer saw, of microbatches with {counts} targets",
                hints=self.likely(got, batches, right, counts, result["events"]),
            )
        return results

    def likely(self, got, batches, right, counts, events):
        """What likely mistakes give, and their words; worked out only where the gradient is wrong."""
        parts, total = len(batches), sum(counts)
        went_back = sum(kind == "backward" for kind, _ in events)
        even, places = [1 / total] * parts, sum(targets.numel() for _, targets, *_ in batches)
        sums = gradients_of(batches, [1 / max(n, 1) for n in counts])
        yield (
            [g / parts for g in sums],
            "that is the mean of the microbatches' means: a token of a half-empty microbatch counts more. Divide each *sum* by the tokens of all of them",
        )
        yield (
            gradients_of(batches, even, where=lambda *_: ()),
            "the model did not get documents and positions: without them a token reads other documents",
        )
        yield (
            gradients_of(batches, even, where=lambda documents, positions: (positions, documents)),
            "documents and positions came in the other order: model(tokens, documents, positions)",
        )
        yield (sums, "that adds up the microbatches' means, and they are unequal")
        last = "that is the last microbatch's alone: " + (
            f"{plural(went_back, 'backward')} ran for {parts} microbatches, each needs one, in the loop"
            if went_back < parts
            else "all went backward, so the gradients were zeroed or replaced in between: let them add up"
        )
        for divisor in (max(counts[-1], 1), total, 1):
            yield gradients_of(batches[-1:], [1 / divisor]), last
        if 0 in counts[1:]:
            before = counts.index(0)
            for divisor in (total, sum(counts[:before])):
                yield (
                    gradients_of(batches[:before], [1 / divisor] * before),
                    "that is of the microbatches before the one without targets: those after it count, too. Pass "
                    "over that one alone, if at all",
                )
        yield (
            gradients_of(batches, [1.0] * parts),
            "those are sums: divide by the number of tokens that count",
        )
        yield (
            gradients_of(batches, [1 / places] * parts),
            "that divides by all places, padding too: count the targets that are not -100",
        )
        yield (
            gradients_of(batches, even, targets=shifted),
            "the targets were shifted once more: targets[:, t] is already the token after tokens[:, t]",
        )
        last_lost = [(x, y[:, 1:], *places) for x, y, *places in batches]
        if left := sum(counts_of(last_lost)):
            yield (
                gradients_of(batches, [1 / left] * parts, targets=shifted),
                "the targets were shifted once more: targets[:, t] is already the token after tokens[:, t]",
            )
        yield (
            [g * 1e9 / norm_of(right) for g in right],
            "that was scaled up to the norm of `clip`: scale only where the norm is larger",
        )
        yield (
            [torch.zeros_like(g) for g in right],
            "there was no gradient when the optimizer stepped: backward first, zero last",
        )
        yield from rounded(got, right)
        factor = times(got, right)
        as_if = f"right but for one factor: as if divided by {total / factor:.4g}, and {total} targets count"
        yield [g * factor for g in right], f"{as_if}, all but those that are -100"

    @check(points=3, title="clipped by the norm of all gradients as one long vector")
    def test_clip(self, submission):
        batches = microbatches((12, 12))
        steps = [(batches, 20.0, 0.01), (batches, 20.0), (batches, 20.0, 2.0)]
        results = submission.run(probes.stepped, steps)
        with as_above(partial(self.right, submission, self.cases())):
            for (_, scale, *clip), result in zip(steps, results):
                right, limit = gradients_of(batches, [1 / 24] * 2, scale), clip[0] if clip else 1.0
                got = self.one_step(result)
                parts = [gradients_of([batch], [1 / 24], scale) for batch in batches]
                expect.equal(
                    got,
                    clipped(right, limit),
                    tol=1e-4,
                    what=f"the gradient clipped to {limit:g}",
                    hints=self.unlike_clipped(got, right, parts, limit),
                )

    def unlike_clipped(self, got, right, parts, limit):
        """What likely mistakes give, and their words."""
        first = clipped(parts[0], limit)
        each_group = [clipped(pair, limit) for pair in (right[:2], right[2:])]
        lengths = f"the norm of all gradients is {norm_of(got):.4g}, and it must be {limit:g}"
        return hints_of(
            {
                "nothing was clipped: scale all gradients by clip / norm when the norm is larger": right,
                "that clips after each microbatch: clip once, after the last backward": clipped(
                    [a + b for a, b in zip(first, parts[1])], limit
                ),
                "each tensor was clipped by its own norm: one factor for all keeps the step's "
                "direction": [clipped([g], limit)[0] for g in right],
                "each of the optimizer's groups was clipped by its own norm: one norm, of all the model's "
                "gradients": [*each_group[0], *each_group[1]],
                "one of the optimizer's two groups was clipped, the other not: take all the model's "
                "parameters": ([*each_group[0], *right[2:]], [*right[:2], *each_group[1]]),
                "the elements were clamped: scale by the norm instead": [
                    g.clamp(-limit, limit) for g in right
                ],
                "that was clipped to 1, whatever `clip` says": clipped(right, 1.0),
                f"the direction is right: {lengths}": [g * times(got, right) for g in right],
            }
        )

    @check(
        points=1, title="no gradient is left for the next step, and the batches are as they were"
    )
    def test_zero(self, submission):
        batches = microbatches((12, 3, 7))
        (result,) = submission.run(probes.stepped, [(batches, 1.0, 1.0)])
        expect.that(
            "numbers" not in result["left"],
            "gradients are left over: the next step would add to them (zero_grad)",
        )
        expect.that(
            "zeros" not in result["left"],
            "gradients of zeros are left over, which take their memory: there are none again when it returns, "
            "each `.grad` is None, as zero_grad(set_to_none=True) leaves it",
        )
        names = ("tokens", "targets", "documents", "positions")
        after, before = (
            {
                f"`{name}` of microbatch {number}": value
                for number, batch in enumerate(each)
                for name, value in zip(names, batch)
            }
            for each in (result["batches"], batches)
        )
        expect.equal(after, before, what="the batches after the call, which are the caller's")


def half_cosine(shares, peak, floor, end):
    """The rates at these shares of the way down; from 1 on it is `end`, where there is one."""
    return [
        end
        if t >= 1 and end is not None
        else floor + (peak - floor) * (1 + math.cos(math.pi * t)) / 2
        for t in shares
    ]


def by_step(first, rates):
    """Named by their step, the rounding of a rate near 0 taken off."""
    return {
        f"step {first + index}": round(rate, 12) if isinstance(rate, float) else rate
        for index, rate in enumerate(rates)
    }


class TestWarmupCosine(Exercise):
    """Warm-up and cosine"""

    name = "warmup_cosine"
    reference = "minitrain.optimizers.learning_rate:warmup_cosine"
    hidden = ("minitrain/optimizers/learning_rate.py",)

    def schedules(self, submission):
        """(total, warmup, peak, floor or nothing), and the rates of all its steps and 40 more."""
        drawn = [(whole(30, 90), whole(2, 20), 1.0, 0.2) for _ in range(2)]
        schedules = [(110, 10, 0.8, 0.1), *drawn, (20, 1, 0.3), (7, 6, 1.0, 0.5), (12, 5, 2.0)]
        calls = [[(step, *rest) for step in range(rest[0] + 40)] for rest in schedules]
        zero = "divide by warmup or by total - warmup: with 0 < warmup < total they are 1 or more, never 0"
        with expect.because({"ZeroDivisionError": zero}):
            got = iter(submission.run(probes.answers, [call for steps in calls for call in steps]))
        return [(rest, [next(got) for _ in steps]) for rest, steps in zip(schedules, calls)]

    def compare(self, got, want, schedule, first, hints):
        names = ("total", "warmup", "peak", "floor")
        expect.equal(
            by_step(first, got),
            by_step(first, want),
            tol=1e-9,
            what=", ".join(f"{name} {value:g}" for name, value in zip(names, schedule)),
            hints=[(by_step(first, wrong), words) for wrong, words in hints],
        )

    @check(points=2, title="the rise: step 0 has peak / warmup, step warmup - 1 the peak")
    def test_rise(self, submission):
        for schedule, got in self.schedules(submission):
            _, warmup, peak, *_ = schedule
            want = [peak * (step + 1) / warmup for step in range(warmup)]
            self.compare(got[:warmup], want, schedule, 0, self.other_rises(schedule))

    def other_rises(self, schedule):
        """What likely mistakes give, and their words."""
        _, warmup, peak, floor = (*schedule, 0.0)[:4]

        def rise(first, steps, low=0.0):
            share = [(step + first) / max(1, steps) for step in range(warmup)]
            return [low + (peak - low) * each for each in share]

        moves = "the first step already moves: peak · (step + 1) / warmup, else it is lost"
        low = "the rise does not begin at the floor, but from 0: peak · (step + 1) / warmup"
        return hints_of(
            {
                moves: (rise(0, warmup), rise(0, warmup - 1)),
                low: (rise(0, warmup, floor), rise(1, warmup, floor)),
                "the peak comes one step late: step warmup - 1 has it": rise(1, warmup + 1),
                "the floor is where the cosine ends, and the rise may be below it: step 0 has peak / warmup": (
                    [max(floor, rate) for rate in rise(1, warmup)]
                ),
            }
        )

    @check(points=4, title="the descent: half a cosine down to the floor, where it stays")
    def test_descent(self, submission):
        for schedule, got in self.schedules(submission):
            total, warmup, peak, floor = (*schedule, 0.0)[:4]
            shares = [(step - warmup) / (total - warmup) for step in range(warmup, len(got))]
            want = half_cosine(shares, peak, floor, floor)
            hints = self.other_descents(schedule, shares, want)
            self.compare(got[warmup:], want, schedule, warmup, hints)

    def other_descents(self, schedule, shares, want):
        """What likely mistakes give, and their words."""
        total, warmup, peak, floor = (*schedule, 0.0)[:4]

        def other(first, length):
            steps = range(warmup, warmup + len(shares))
            late = [(step - first) / max(1, length) if step < total else 1.0 for step in steps]
            return half_cosine(late, peak, floor, floor)

        t, length = "t = (step - warmup) / (total - warmup)", total - warmup
        to_0, again = half_cosine(shares, peak, 0.0, floor), half_cosine(shares, peak, floor, None)
        line = [max(floor, peak + (floor - peak) * share) for share in shares]
        return hints_of(
            {
                "after `total` it stays at the floor: the cosine must not come up again": again,
                f"the cosine starts at the peak, at step `warmup`: {t}": other(0, total),
                f"the cosine reaches the floor at `total`: {t}": other(warmup, total),
                f"the cosine reaches the floor one step early: {t}": other(warmup, length - 1),
                f"the peak is at step `warmup`, and this is one step on: {t}": (
                    other(warmup - 1, length),
                    other(warmup - 1, length + 1),
                ),
                "step `warmup` is above the peak: it is the cosine's first, and the rise is for step < "
                "warmup": [peak * (warmup + 1) / warmup, *want[1:]],
                "the cosine ends at the floor by itself, floor + (peak - floor)·…: no max": [
                    max(floor, rate) for rate in to_0
                ],
                "half-way down the cosine is the mean of peak and floor: it goes down to the floor, not to "
                "0": to_0,
                "it goes down to the floor, not to 0": half_cosine(shares, peak, 0.0, 0.0),
                "at `total` the rate is the floor, and stays there": half_cosine(
                    shares, peak, floor, 0.0
                ),
                "that is a straight line: half a cosine is asked for": line,
            }
        )


class TestMFU(Exercise):
    """Model FLOPs utilisation"""

    name = "mfu"
    reference = "minitrain.measure.flops:mfu"
    hidden = ("minitrain/measure/flops.py", "minitrain/measure/parameters.py")

    @check(points=6, title="the share of the peak that trains: model FLOPs only")
    def test_value(self, submission):
        cases, drawn = [], configs()
        lengths = [whole(2, 300) for _ in drawn]
        calls = [*zip(drawn, lengths), *((c, lengths[0]) for c in [drawn[1], *siblings(drawn[0])])]
        for c, length in [*calls, (drawn[0], lengths[0] + 50)]:
            share = 0.003 + 0.9 * float(torch.rand(()))
            peak = float(torch.randint(10**9, 10**11, (1,)))
            cases.append((share, (share * peak / flops_of(c, length), c, length, peak)))
        in_a_row(partial(self.right, submission), cases)

    def right(self, submission, cases):
        """cases: (the share, the arguments)."""
        answers = submission.run(probes.answers, [call for _, call in cases])
        for (share, (_, c, length, _)), got in zip(cases, answers):
            six = [
                share * 6 * n / flops_of(c, length) for n in (parameters_of(c), matmul_weights(c))
            ]
            hints = hints_of(
                {
                    "that is 6P, without attention's products: use `flops_per_token`": tuple(six),
                    "that counts the forward alone: backward trains too": share / 3,
                    "that counts a recomputed forward: HFU does, MFU does not": share * 4 / 3,
                    "that is in percent: a share from 0 to 1": 100 * share,
                    "it is rounded, so that a small share becomes 0: return the quotient as it is": tuple(
                        round(share, digits) for digits in range(5)
                    ),
                    "that is upside down": 1 / share,
                    "`flops_per_token` is for one token already: do not multiply by the length": share
                    * length,
                    "`flops_per_token` is for one token already: do not divide by the length": share
                    / length,
                }
            )
            what = f"MFU of {told(c)}, at {length} tokens a sequence"
            expect.close(got, share, tol=1e-6, what=what, hints=hints)


class TestTraining(Experiment):
    """Toward the floor"""

    name = "training"
    rests_on = ("train_step", "warmup_cosine")

    @check(points=4, title="the held-out loss falls, and never below the floor")
    def test_floor(self, table):
        floor = table[0]["floor"]
        for row in table:
            expect.that(
                row["loss"] > 0.98 * floor,
                f"a held-out loss of {row['loss']:.3f} is below the floor of {floor:.3f}: no model can do that on text it has "
                "not seen; was it evaluated on the training text?",
            )
        first, last = table[0]["loss"], table[-1]["loss"]
        expect.that(last < first, f"the loss went from {first:.3f} to {last:.3f}: it should fall")

    @check(points=4, title="it ends below twice the floor")
    def test_end(self, table):
        floor, last = table[0]["floor"], table[-1]["loss"]
        expect.that(
            last < 2 * floor,
            f"it ended at {last:.3f} nats a token, floor {floor:.3f}: train longer, or check the learning rate",
        )


LIMITS = {"parameters": 0.03, "gradients": 0.03, "optimizer": 0.03, "activations": 0.05}


class TestMemory(Experiment):
    """The ledger, predicted"""

    name = "memory"
    rests_on = ("train_step",)

    @check(points=7, title="parameters, gradients and optimizer within 3%, activations within 5%")
    def test_prediction(self, table):
        rows = expect.rows(table, "category")
        for category, limit in LIMITS.items():
            row = rows[category]
            expect.close(
                row["predicted"], row["measured"], tol=limit, what=f"predicted bytes of {category}"
            )


class TestThroughput(Experiment):
    """Throughput and memory"""

    name = "throughput"
    rests_on = ("flops_per_token", "mfu")

    @check(points=4, title="activations grow with batch x length; the model's own bytes do not")
    def test_bytes(self, table):
        rows = sorted(table, key=lambda row: row["batch"] * row["length"])
        expect.that(
            len(rows) >= 4, f"{len(rows)} rows: take four or more pairs of batch and length"
        )
        small, large = rows[0], rows[-1]
        expect.that(
            large["activation_bytes"] > small["activation_bytes"],
            "the largest batch keeps no more activations than the smallest: are the rows mixed up?",
        )
        expect.that(
            len({row["model_bytes"] for row in rows}) == 1,
            f"bytes of parameters, gradients and optimizer differ between rows: {sorted({row['model_bytes'] for row in rows})}; "
            "they depend on the model alone",
        )


class TestScalingLaw(Experiment):
    """A law, and the floor that it must find"""

    name = "scaling_law"
    rests_on = ("train_step", "training")

    @check(points=3, title="E, with your own run among the others, is the true floor within 5%")
    def test_irreducible_loss(self, table):
        row = table[0]
        expect.close(row["E"], row["floor"], tol=0.05, what="E, nats a token")

    @check(points=3, title="the law of the recorded runs predicts your own run within 5%")
    def test_prediction(self, table):
        row = table[0]
        expect.that(
            row["measured"] > 0.98 * row["floor"],
            f"a loss of {row['measured']:.3f} is below the floor of {row['floor']:.3f}: no model can do that",
        )
        expect.close(
            row["predicted"], row["measured"], tol=0.05, what="the predicted loss, nats a token"
        )


class TestAboveFloor(Question):
    """How far above the floor"""

    name = "above_floor"
    rests_on = ("training",)

    @check(points=5, title="of your own last row, as a share of the floor")
    def test_value(self, value, records):
        row = expect.recorded(records, "training")[-1]
        want = row["loss"] / row["floor"] - 1
        percent = abs(value / 100 - want) <= 0.005
        likely = [
            (row["loss"] / row["floor"], "subtract 1"),
            (row["loss"] - row["floor"], "those are nats: divide them by the floor"),
            (1 - row["floor"] / row["loss"], "that is a share of the loss: divide by the floor"),
        ]
        advice = "compute it from your own last row: `training[-1]['loss'] / floor - 1`"
        advice = next((words for x, words in likely if abs(value - x) <= 0.005), advice)
        advice = "that is in percent, give a share" if percent else advice
        expect.that(
            abs(value - want) <= 0.005,
            f"got {value:.4g} for a loss of {row['loss']:.4f} over a floor of {row['floor']:.4f}: {advice}",
        )


class TestLargest(Question):
    """What fills the memory"""

    name = "largest"
    rests_on = ("memory",)

    @check(points=5, title="the largest category of your own ledger")
    def test_value(self, value, records):
        rows = expect.recorded(records, "memory")
        names = [row["category"] for row in rows]
        expect.among(value, names)
        want = max(rows, key=lambda row: row["measured"])["category"]
        expect.that(value == want, f"got {value!r}; the tallest bar of your ledger is another one")


class TestFlopsOfRun(Question):
    """What your run cost"""

    name = "run_flops"
    rests_on = ("flops_per_token", "training")

    @check(
        points=5, title="FLOPs of your training run, from its tokens and the model's FLOPs a token"
    )
    def test_value(self, value, records):
        row = expect.recorded(records, "training")[-1]
        want = row["tokens"] * row["flops_per_token"]
        expect.close(
            value,
            want,
            tol=0.02,
            what="FLOPs",
            hints=[
                (want / 3, "that is the forward alone"),
                (row["flops_per_token"], "that is for one token"),
            ],
        )
