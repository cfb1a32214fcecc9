"""The checks of lab e01: a model, its costs on paper, and one device's best."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, chain, islice

import torch

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import hints, variant
from minitrain.measure.flops import attention_flops_per_token, flops_per_token
from minitrain.measure.parameters import embedding_weights, matmul_parameters, parameter_count
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
DETACHED = {
    "does not require grad": "no gradient comes to the inputs: nothing may be detached "
    "(`detach`, `.data`, `no_grad`)"
}


def whole(low, high):
    """A whole number from low to high - 1, drawn anew at each check."""
    return int(torch.randint(low, high, (1,)))


def configs():
    """Shapes to count: tied and not, one layer, H·C above and below D; then some that are other
    than the first in one number each."""
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
        shape = (whole(50, 200), width, layers, kv * groups, kv, whole(30, 90))
        made.append(ModelConfig(*shape, tied=tied, head_size=size))
    c = made[0]
    more = {"vocab_size": 7, "hidden_size": 3, "layers": 1, "heads": c.kv_heads, "head_size": 2}
    made += [replace(c, **{k: getattr(c, k) + n}) for k, n in {**more, "ffn_size": 5}.items()]
    return [*made, replace(c, kv_heads=1), replace(c, tied=not c.tied)]


def told(c):
    """A configuration in the words of the text."""
    letters = f"V {c.vocab_size}, D {c.hidden_size}, L {c.layers}, H {c.heads}, K {c.kv_heads}"
    return f"{letters}, C {c.head_size}, F {c.ffn_size}, {'tied' if c.tied else 'not tied'}"


def counted(got, want, what, hints):
    """A count is exact; a float has 53 bits, and a `/` on the way rounds."""
    is_float = isinstance(got, float)
    expect.that(not is_float, f"got {got!r}, a float: a count is an int; divide with //")
    expect.equal(got, want, what=what, hints=hints)


class TestRotate(Exercise):
    """Rotary position embedding"""

    name = "rotate"
    reference = "minitrain.model.rope:rotate"
    hidden = ("minitrain/model/rope.py",)
    MISTAKES = (
        (("+ x.roll", "- x.roll"),
         "it turns the other way: (a·cos - b·sin, b·cos + a·sin); `sin` has its first half negated already"),
        (("* turns.sin", "* turns.sin.abs()"), "`turns.sin` is to be taken as it is: its first half is negative already"),
        (("x.roll(x.shape[-1] // 2, dims=-1)", "x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)"),
         "that pairs numbers 2i and 2i+1: here the pairs are i and i + C/2, the two halves"),
        ((", dims=-1", ""), "`roll` without `dims` rolls all numbers as one row: dims=-1"),
        (("x.roll(x.shape[-1] // 2, dims=-1)", "x"), "x·sin must take the *other* half of x: roll by C/2"),
    )  # fmt: skip

    def turns(self, angles):
        """cos and sin of angles (T, C/2), as they are given: (T, 1, C) each."""
        cos, sin = angles[:, None].cos(), angles[:, None].sin()
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)

    @check(
        points=6, title="each half-split pair is turned by its angle, in every shape; gradients too"
    )
    def test_values(self, submission):
        shapes = [(2, 5, 3, 8), (1, 1, 1, 2), (2, 7, 2, 4), (3, 4, 1, 6), (2, 5, 3, 8)]
        calls = []
        for shape, dtype in zip(shapes, [F64, F64, torch.float32, F64, F64]):
            angles = 6 * torch.rand(shape[1], shape[3] // 2, dtype=dtype)
            calls.append((torch.randn(shape, dtype=dtype), *self.turns(angles)))
        rows = submission.run(probes.turned, calls)
        for call, row in zip(calls, rows):
            turned = lambda f, call=call: probes.turned(f, [call])[0]["out"]  # noqa: E731
            likely = hints(self.reference, self.MISTAKES, turned)
            what = f"x of shape {tuple(call[0].shape)}"
            expect.equal(row["out"], turned(variant(self.reference)), what=what, hints=likely)
        expect.left_alone(rows, calls, ["x", "turns.cos", "turns.sin"])
        with expect.because(DETACHED):
            got = submission.run(probes.turned_gradients, calls)
        want = probes.turned_gradients(variant(self.reference), calls)
        expect.equal(got, want, tol=1e-4, what="the values are right; the gradient of x")

    @check(points=2, title="the product of a query and a key depends on their distance alone")
    def test_distance(self, submission):
        turns = self.turns(torch.arange(6)[:, None] * torch.rand(4, dtype=F64).add(0.1))
        q, k = torch.randn(2, 1, 1, 1, 8, dtype=F64).expand(2, 1, 6, 1, 8).clone()
        q, k = (row["out"] for row in submission.run(probes.turned, [(q, *turns), (k, *turns)]))
        products = q[0, :, 0] @ k[0, :, 0].T  # (T, T)
        for apart in (1, 2):
            found = products.diagonal(offset=apart)
            what = f"q·k for tokens {apart} apart, at {len(found)} places (all must be equal)"
            expect.equal(found, found[:1].expand(6 - apart), tol=1e-9, what=what)
        expect.that(
            abs(products[0, 1] - products[0, 2]) > 1e-9,
            "q·k is the same for tokens one apart and two apart: their positions do not show in it",
        )


class TestAttention(Exercise):
    """Grouped-query attention"""

    name = "grouped_query_attention"
    reference = "minitrain.model.attention.grouped_query:attention_naive"
    hidden = tuple(
        f"minitrain/model/attention/{name}.py" for name in ("grouped_query", "tiled", "triton")
    )
    MISTAKES = (
        (("(scores + mask)", "scores"),
         "tokens look into the future: mask the scores above the diagonal (`masked_fill` returns a new tensor)"),
        (("(scores + mask).softmax(dim=-1)", "scores.softmax(dim=-1).tril()"),
         "the weights of a row no longer sum to 1: hide the future before the softmax, with -inf"),
        (("(scores + mask)", "scores.tril()"),
         "a score of 0 still weighs exp(0): set the future to -inf before the softmax; token 0 sees itself alone"),
        ((" / size**0.5", ""), "the scores are not divided by sqrt(C)"),
        (('k, "b kv t c -> b (kv group) t c"', 'k, "b kv t c -> b (group kv) t c"',
          'v, "b kv t c -> b (kv group) t c"', 'v, "b kv t c -> b (group kv) t c"'),
         "query head h must read key/value head h // (H/K): neighbours share (repeat_interleave, not repeat)"),
    )  # fmt: skip

    def drawn(self, batch, heads, kv, length, size, dtype=F64, factor=1.0):
        """q, k, v; `factor` makes the scores large."""
        q = factor * torch.randn(batch, heads, length, size, dtype=dtype)
        k, v = torch.randn(2, batch, kv, length, size, dtype=dtype)
        return q, factor * k, v

    def attended(self, submission, calls, tol, mistakes=()):
        """The rows of these calls, right and without the ready-made attention."""
        wants = probes.attended(variant(self.reference), calls)["rows"]
        found = submission.run(probes.attended, calls)
        for call, row, want in zip(calls, found["rows"], wants):
            attend = lambda f, call=call: f(*call)  # noqa: E731
            q, k, _ = call
            expect.equal(
                row["out"],
                want["out"],
                tol,
                hints(self.reference, mistakes, attend),
                f"{q.shape[1]} heads on {k.shape[1]} key/value heads, {q.shape[2]} tokens",
            )
        self.written_out(found["used"])
        return found["rows"]

    def written_out(self, used):
        ready = sorted(name for name in used if "attention" in name)
        expect.that(
            not ready,
            f"it calls the ready-made {', '.join(ready)}: write attention out with plain matmuls "
            "and a softmax, that is the exercise",
        )

    @check(points=7, title="equals PyTorch's attention, for 1 to 4 query heads a key/value head")
    def test_values(self, submission):
        shapes = [(2, 4, 4, 5, 6), (2, 4, 2, 7, 4), (1, 6, 2, 3, 8), (3, 4, 1, 6, 2)]
        shapes += [(2, 2, 1, 1, 3), (1, 8, 2, 9, 1), (2, 4, 2, 7, 4)]
        calls = [self.drawn(*shape) for shape in shapes]
        calls[1][0][:, :, 1] = calls[1][1][:, :, 2] = 0  # a query and a key with scores of 0
        calls.append(self.drawn(2, 6, 3, 5, 4, torch.float32))
        expect.left_alone(self.attended(submission, calls, None, self.MISTAKES), calls, "qkv")

    @check(points=3, title="its gradients too: queries, keys and values")
    def test_gradients(self, submission):
        calls = [self.drawn(1, 4, 2, 5, 6), self.drawn(2, 3, 3, 4, 2), self.drawn(1, 4, 1, 5, 6)]
        written = (
            "`q /= …` and its like write into the caller's tensor: make a new one, `q = q / …`"
        )
        with expect.because({**DETACHED, "used in an in-place": written}):
            found = submission.run(probes.attended_gradients, calls)
        wants = probes.attended_gradients(variant(self.reference), calls)["rows"]
        for got, want in zip(found["rows"], wants):
            for name, gradient, right in zip("qkv", got, want):
                expect.equal(gradient, right, tol=1e-8, what=f"gradient of {name}")
        self.written_out(found["used"])

    @check(points=2, title="large scores do not overflow, and nothing of the future leaks in")
    def test_extremes(self, submission):
        calls = [self.drawn(1, 2, 1, 4, 8, factor=300), self.drawn(2, 4, 2, 6, 4, factor=100)]
        with expect.though("with scores of 10,000 and more"):
            self.attended(submission, calls, 1e-6)


class TestParameterCount(Exercise):
    """Parameters in closed form"""

    name = "parameter_count"
    reference = "minitrain.measure.parameters:parameter_count"
    hidden = ("minitrain/measure/parameters.py",)

    @check(points=5, title="four random shapes, tied and untied, to the last parameter")
    def test_random(self, submission):
        drawn = configs()
        for c, got in zip(drawn, submission.run(probes.answers, [(c,) for c in drawn])):
            counted(got, parameter_count(c), f"parameters of {told(c)}", self.likely(c))

    def likely(self, c):
        right, D = parameter_count(c), c.hidden_size
        return [
            (parameter_count(replace(c, kv_heads=c.heads)), "keys and values have kv_heads heads, not heads"),
            (parameter_count(replace(c, tied=not c.tied)),
             "a tied head is the embedding itself: count it once if tied, twice if not"),
            (right - c.layers * D * c.ffn_size, "SwiGLU has three matrices: gate, up and down"),
            (right - D * (2 * c.layers + 1), "the norms are missing: D each, two a layer and one at the end"),
            (right + 2 * c.layers * D * (D - c.heads * c.head_size),
             "that takes H·C = D, which need not be: q and o are D x H·C"),
        ]  # fmt: skip

    @check(points=3, title="Llama 2 7B: 6,738,415,616, and Llama 3 405B: 405,853,388,800")
    def test_published(self, submission):
        models = {"llama2-7b": 6_738_415_616, "llama3-405b": 405_853_388_800}
        got = submission.run(probes.answers, [(PRESETS[name],) for name in models])
        for (name, want), count in zip(models.items(), got):
            expect.equal(count, want, what=f"parameters of {name}")


class TestFlops(Exercise):
    """FLOPs in closed form"""

    name = "flops_per_token"
    reference = "minitrain.measure.flops:flops_per_token"
    hidden = ("minitrain/measure/flops.py", "minitrain/measure/parameters.py")

    @check(points=5, title="four random shapes and lengths, forward and backward")
    def test_random(self, submission):
        first, *drawn = configs()
        calls = [
            *((first, n) for n in (40, 1, whole(90, 300))),
            *((c, whole(2, 300)) for c in drawn),
        ]
        for (c, length), got in zip(calls, submission.run(probes.answers, calls)):
            want = flops_per_token(c, length)
            what = f"FLOPs a token at length {length} of {told(c)}"
            counted(got, want, what, self.likely(c, length, want))

    def likely(self, c, length, want):
        attention = attention_flops_per_token(c, length)
        return [
            (6 * parameter_count(c), "6·P is for large models: the embedding's lookup and the norms multiply nothing, and "
             "attention adds QKᵀ and AV"),
            (6 * matmul_parameters(c), "attention's own products are missing: QKᵀ and AV, 4·L·H·C·T forward"),
            (want // 3, "that is the forward alone: backward costs twice as much again"),
            (want + 6 * embedding_weights(c), "the embedding is a lookup: it multiplies nothing; only the head does"),
            (want - 3 * attention // 2, "attention's part is half of what it must be: QKᵀ and AV take 2·C·T a head each; "
             "count attention in full, though half of it is masked"),
        ]  # fmt: skip

    @check(points=3, title="twice the length: only attention's part doubles")
    def test_length(self, submission):
        for c in configs()[:2]:
            got = submission.run(probes.answers, [(c, n) for n in (64, 128, 1)])
            for more, less, apart in ((got[1], got[0], 64), (got[0], got[2], 63)):
                want = 3 * attention_flops_per_token(c, apart)
                expect.equal(more - less, want, what=f"{apart} tokens more, of {told(c)}")


class TestTrainStep(Exercise):
    """A step over microbatches"""

    name = "train_step"
    reference = "minitrain.training.loop:train_step"
    hidden = ("minitrain/training/loop.py", "minitrain/training/loss.py")
    MEAN = (
        "token_weighted_loss(logits, batch.targets, (batch.targets != IGNORED).sum().clamp(min=1))"
    )
    SHARE = "token_weighted_loss(logits, batch.targets, tokens)"
    MISTAKES = (
        ((SHARE, f"{MEAN} / len(microbatches)"),
         "that is the mean of the microbatches' means: a token of a half-empty microbatch counts more. "
         "Divide each *sum* by the tokens of all of them"),
        ((SHARE, MEAN), "that adds up the microbatches' means, and they are unequal"),
        ((SHARE, "token_weighted_loss(logits, batch.targets, places)"),
         "that divides by all places, padding too: count the targets that are not -100"),
        ((SHARE, "token_weighted_loss(logits[:, :-1], batch.targets[:, 1:], tokens)"),
         "the targets were shifted once more: targets[:, t] is already the token after tokens[:, t]"),
        (("batch.documents, batch.positions", ""),
         "the model did not get documents and positions: without them a token reads other documents"),
    )  # fmt: skip
    CLIPS = (
        (("peers.clip(parameters, clip)", "torch.zeros(())"),
         "nothing was clipped: scale all gradients by clip / norm when the norm is larger"),
        (("peers.clip(parameters, clip)", "[peers.clip(p, clip) for p in parameters][0]"),
         "each tensor was clipped by its own norm: one factor for all keeps the step's direction"),
        (("peers.clip(parameters, clip)", "peers.clip(parameters, 1.0)"), "that was clipped to 1, whatever `clip` says"),
    )  # fmt: skip

    def microbatches(self, counted, shape=(3, 4)):
        """(tokens, targets, documents, positions) of each, with so many targets that count."""
        made, place = [], torch.arange(shape[1])
        for count in counted:
            tokens, targets = torch.randint(11, shape), torch.full(shape, IGNORED)
            where = torch.randperm(targets.numel())[:count]
            targets.view(-1)[where] = torch.randint(11, (count,))
            second = place >= 2  # two documents a row
            documents, positions = second.long(), place - 2 * second
            made.append(
                (tokens, targets, *(z.expand(shape).clone() for z in (documents, positions)))
            )
        return made

    def stepped(self, submission, steps, mistakes, what, tol):
        """What came back; the gradients that the optimizer saw, and its weights, are right."""
        results = submission.run(probes.stepped, steps)
        for step, got in zip(steps, results):
            want = probes.one_step(variant(self.reference), *step)
            likely = hints(
                self.reference, mistakes, lambda f, step=step: probes.one_step(f, *step)["seen"]
            )
            times = len(got["seen"])
            expect.that(
                times == 1, f"optimizer.step() ran {times} times: once, after the last microbatch"
            )
            expect.equal(got["seen"], want["seen"], tol, likely, what)
            expect.equal(got["weights"], want["weights"], tol, what="the weights after the step")
        return results

    @check(
        points=8,
        title="the gradients of one large batch, with microbatches of unequal counts; only one in memory at a time",
    )
    def test_gradients(self, submission):
        cases = [self.microbatches(n) for n in [(12, 3, 7), (5,), (2, 0, 9, 12), (0, 4, 1)]]
        cases.append([*self.microbatches((9, 2), (2, 5)), *self.microbatches((7,), (1, 8))])
        what = "the gradient that the optimizer saw"
        steps = [(batches, 1.0, 1e9) for batches in cases]
        results = self.stepped(submission, steps, self.MISTAKES, what, 1e-9)
        for batches, got in zip(cases, results):
            if all((targets != IGNORED).any() for _, targets, *_ in batches):
                self.one_at_a_time(batches, got)

    def one_at_a_time(self, batches, got):
        """Each microbatch goes forward and at once backward, so that one graph is alive."""
        most = max(accumulate(1 if kind == "forward" else -1 for kind, _ in got["events"]))
        expect.that(
            most <= 1,
            f"{most} microbatches went forward before one went backward: all their activations are "
            "in memory at once, which microbatches are to avoid. Call backward() after each",
        )
        ran = sorted(shape for kind, shape in got["events"] if kind == "forward")
        given = sorted(list(tokens.shape) for tokens, *_ in batches)
        expect.that(
            ran == given,
            f"the model ran on tokens of shapes {ran}, the microbatches have {given}: each goes "
            "through the model once, by itself, since all together do not fit",
        )
        expect.that(
            got["alive"] == 0 and got["outputs"] == 0,
            f"when a microbatch went forward, {plural(got['alive'], 'tensor')} of the graphs and the logits of "
            f"{1 + got['outputs']} microbatches before it were still in memory: let each backward "
            "free its graph, and keep no microbatch's outputs",
        )

    @check(points=3, title="clipped by the norm of all gradients as one long vector")
    def test_clip(self, submission):
        batches = self.microbatches((12, 12))
        steps = [(batches, 20.0, 0.01), (batches, 20.0), (batches, 20.0, 2.0), (batches, 0.1)]
        self.stepped(submission, steps, self.CLIPS, "the clipped gradient", 1e-4)

    @check(
        points=1, title="no gradient is left for the next step, and the batches are as they were"
    )
    def test_zero(self, submission):
        batches = self.microbatches((12, 3, 7))
        (result,) = submission.run(probes.stepped, [(batches, 1.0, 1.0)])
        left = {
            "numbers": "gradients are left over: the next step would add to them (zero_grad)",
            "zeros": "gradients of zeros are left over, which take their memory: each `.grad` must be None, as "
            "zero_grad(set_to_none=True) leaves it",
        }  # fmt: skip
        for state, words in left.items():
            expect.that(state not in result["left"], words)
        expect.equal(result["batches"], batches, what="the batches after the call (the caller's)")


def by_step(steps, rates):
    """Named by their step, the rounding of a rate near 0 taken off."""
    rounded = (round(rate, 12) if isinstance(rate, float) else rate for rate in rates)
    return {f"step {step}": rate for step, rate in zip(steps, rounded)}


class TestWarmupCosine(Exercise):
    """Warm-up and cosine"""

    name = "warmup_cosine"
    reference = "minitrain.optimizers.learning_rate:warmup_cosine"
    hidden = ("minitrain/optimizers/learning_rate.py",)
    MISTAKES = (
        (("(step + 1) / warmup", "step / warmup"), "the first step already moves: peak · (step + 1) / warmup, else it is lost"),
        (("peak * min(1.0, (step + 1) / warmup)", "floor + (peak - floor) * (step + 1) / warmup"),
         "the rise does not begin at the floor, but from 0: peak · (step + 1) / warmup"),
        (("if step >= total:", "if False:"), "after `total` it stays at the floor: the cosine must not come up again"),
        (("(step - warmup) / (total - warmup)", "(step - warmup) / total"),
         "the cosine reaches the floor at `total`: t = (step - warmup) / (total - warmup)"),
        (("(1.0 + math.cos(math.pi * descended))", "2 * (1 - descended)"), "that is a straight line: half a cosine is asked for"),
    )  # fmt: skip

    def right(self, submission, part):
        """Compares these steps' rates (a slice, of the warm-up) for several schedules."""
        drawn = [(whole(30, 90), whole(2, 20), 1.0, 0.2) for _ in range(2)]
        schedules = [(110, 10, 0.8, 0.1), *drawn, (20, 1, 0.3), (7, 6, 1.0, 0.5), (12, 5, 2.0)]
        steps = [range(rest[0] + 40)[part(rest[1])] for rest in schedules]
        calls = [[(step, *rest) for step in each] for each, rest in zip(steps, schedules)]
        zero = "with 0 < warmup < total neither warmup nor total - warmup is 0: divide by these"
        with expect.because({"ZeroDivisionError": zero}):
            rates = iter(submission.run(probes.answers, list(chain(*calls))))
        for each, rest, made in zip(steps, schedules, calls):
            answer = lambda f, each=each, made=made: by_step(each, probes.answers(f, made))  # noqa: E731
            expect.equal(
                by_step(each, islice(rates, len(each))),
                answer(variant(self.reference)),
                1e-9,
                hints(self.reference, self.MISTAKES, answer),
                ", ".join(f"{k} {v:g}" for k, v in zip(("total", "warmup", "peak", "floor"), rest)),
            )

    @check(points=2, title="the rise: step 0 has peak / warmup, step warmup - 1 the peak")
    def test_rise(self, submission):
        self.right(submission, lambda warmup: slice(0, warmup))

    @check(points=4, title="the descent: half a cosine down to the floor, where it stays")
    def test_descent(self, submission):
        self.right(submission, lambda warmup: slice(warmup, None))


class TestMFU(Exercise):
    """Model FLOPs utilisation"""

    name = "mfu"
    reference = "minitrain.measure.flops:mfu"
    hidden = ("minitrain/measure/flops.py", "minitrain/measure/parameters.py")
    MISTAKES = (
        (("flops_per_token", "forward_flops_per_token"), "that counts the forward alone: backward trains too"),
        (("/ peak", "/ peak * 4 / 3"), "that counts a recomputed forward: HFU does, MFU does not"),
        (("/ peak", "/ peak * 100"), "that is in percent: a share from 0 to 1"),
        (("/ peak", "/ peak * length"), "`flops_per_token` is for one token already: do not multiply by the length"),
    )  # fmt: skip

    @check(points=6, title="the share of the peak that trains: model FLOPs only")
    def test_value(self, submission):
        calls = []
        for c in configs():
            share, peak = 0.003 + 0.9 * torch.rand(()).item(), float(whole(10**9, 10**11))
            length = whole(2, 300)
            calls.append((share * peak / flops_per_token(c, length), c, length, peak))
        for call, got in zip(calls, submission.run(probes.answers, calls)):
            rate, c, length, peak = call
            six = "that is 6P, without attention's products: use `flops_per_token`"
            likely = [(rate * 6 * parameter_count(c) / peak, six)]
            likely += hints(self.reference, self.MISTAKES, lambda f, call=call: f(*call))
            what = f"MFU of {told(c)}, at {length} tokens a sequence"
            expect.close(got, variant(self.reference)(*call), tol=1e-6, what=what, hints=likely)


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
