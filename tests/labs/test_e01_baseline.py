"""The checks of lab e01: a model, its costs on paper, and one device's best."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, check

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
        "steps": 60, "corpus_bytes": 1_000_000, "held_out_bytes": 8_000,
        "grid": [[2, 64], [4, 64], [8, 64], [4, 16], [4, 128]], "own_tokens": 125_000,
    },
    "gpu": {"preset": "30M", "batch": 32, "length": 256},
    "multi": {},
}  # fmt: skip
IGNORED = -100


# The shapes that the counts are graded on: drawn anew at each check.
def shapes():
    generator = torch.Generator().manual_seed(int(torch.randint(1 << 30, (1,))))

    def draw(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    made = []
    for tied in (False, True, False):
        size, kv, groups = 2 * draw(4, 9), draw(1, 4), draw(2, 4)
        heads = kv * groups
        made.append(
            {"vocab_size": draw(50, 200), "hidden_size": size * heads, "layers": draw(2, 6), "heads": heads,
                 "kv_heads": kv, "ffn_size": draw(30, 90), "head_size": size, "tied": tied, "window": None, "qkv_bias": False,
                 "gated": True, "experts": 0}
        )  # fmt: skip
    return made


def embedding(c):
    return c["vocab_size"] * c["hidden_size"]


def attention_weights(c, kv=None):
    kv = c["kv_heads"] if kv is None else kv
    return 2 * c["hidden_size"] * c["head_size"] * (c["heads"] + kv)


def mlp_weights(c, matrices=3):
    return matrices * c["hidden_size"] * c["ffn_size"]


def parameters_of(c, kv=None, matrices=3, norms=2, tied=None):
    tied = c["tied"] if tied is None else tied
    layer = attention_weights(c, kv) + mlp_weights(c, matrices) + norms * c["hidden_size"]
    return (
        embedding(c) * (1 if tied else 2) + c["layers"] * layer + (c["hidden_size"] if norms else 0)
    )


def matmul_weights(c):
    return c["layers"] * (attention_weights(c) + mlp_weights(c)) + embedding(c)


def microbatches(valid=(12, 3, 7)):
    """(tokens, targets, documents, positions) with unequal numbers of targets that count."""
    made = []
    for count in valid:
        tokens, targets = torch.randint(11, (3, 4)), torch.full((12,), IGNORED)
        targets[torch.randperm(12)[:count]] = torch.randint(11, (count,))
        documents, positions = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
        made.append((tokens, targets.view(3, 4), documents.expand(3, 4), positions.expand(3, 4)))
    return made


def gradients_of(batches, weights, packed=True):
    """Gradients of the weighted sum of each microbatch's summed loss."""
    model = probes.tiny()
    loss = 0.0
    for (tokens, targets, *where), weight in zip(batches, weights):
        logits = model(tokens, *(where if packed else ()))
        loss = loss + weight * F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
    loss.backward()
    return [p.grad for p in model.parameters()]


def clipped(gradients, limit):
    norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    return [g * min(1.0, (limit / (norm + 1e-6)).item()) for g in gradients]


class TestRotate(Exercise):
    """Rotary position embedding"""

    name = "rotate"
    reference = "minitrain.model.rope:rotate"
    hidden = ("minitrain/model/rope.py",)

    def turns(self, length, size):
        angles = torch.arange(length)[:, None, None] * torch.rand(size // 2, dtype=torch.float64)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)

    def check_values(self, submission):
        x = torch.randn(2, 5, 3, 8, dtype=torch.float64)
        cos, sin = self.turns(5, 8)
        a, b = x.chunk(2, -1)
        c, s = cos[..., :4], sin[..., 4:]
        want = torch.cat([a * c - b * s, b * c + a * s], -1)
        other_way = torch.cat([a * c + b * s, b * c - a * s], -1)
        pairs = x.unflatten(-1, (4, 2))
        p, q = pairs[..., 0], pairs[..., 1]
        interleaved = torch.stack([p * c - q * s, q * c + p * s], -1).flatten(-2)
        got = submission.run(probes.turned, x, cos, sin)
        expect.equal(
            got,
            want,
            hints=[
                (
                    other_way,
                    "it turns the other way: (a·cos - b·sin, b·cos + a·sin); `sin` has its first half negated already",
                ),
                (
                    interleaved,
                    "that pairs numbers 2i and 2i+1: here the pairs are i and i + C/2, the two halves",
                ),
                (
                    torch.cat([a * c + b * s, b * c + a * s], -1),
                    "the sign of sin came twice: `turns.sin` has it already, so give it (b, a) and not (-b, a)",
                ),
                (x * cos + x * sin, "x·sin must take the *other* half of x: roll by C/2"),
                (x * cos, "the sin part is missing"),
            ],
        )

    @check(points=5, title="each half-split pair is turned by its angle (float64)")
    def test_values(self, submission):
        self.check_values(submission)

    @check(points=3, title="the product of a query and a key depends on their distance alone")
    def test_distance(self, submission):
        q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).expand(2, 1, 6, 1, 8)
        cos, sin = self.turns(6, 8)
        q, k = (
            submission.run(probes.turned, q, cos, sin),
            submission.run(probes.turned, k, cos, sin),
        )
        expect.that(
            isinstance(q, torch.Tensor) and q.shape == (1, 6, 1, 8),
            "the result must have x's shape",
        )
        products = (q[0, :, 0] @ k[0, :, 0].T).diagonal(offset=2)
        expect.equal(
            products,
            products[:1].expand(4),
            tol=1e-9,
            what="q·k for tokens two apart, at four places (all four must be equal)",
        )


class TestAttention(Exercise):
    """Grouped-query attention"""

    name = "grouped_query_attention"
    reference = "minitrain.model.attention.grouped_query:attention_naive"
    hidden = ("minitrain/model/attention/grouped_query.py",)

    def oracle(self, q, k, v, causal=True, repeat="interleave", scale=None):
        times = q.shape[1] // k.shape[1]
        if repeat == "interleave":
            k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        else:
            k, v = k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

    @check(points=7, title="equals PyTorch's attention, for 1 to 4 query heads a key/value head")
    def test_values(self, submission):
        for heads, kv, length, size in [(4, 4, 5, 6), (4, 2, 7, 4), (6, 2, 3, 8), (4, 1, 6, 2)]:
            q = torch.randn(2, heads, length, size, dtype=torch.float64)
            k, v = torch.randn(2, 2, kv, length, size, dtype=torch.float64)
            got = submission.run(probes.attended, q, k, v)["out"]
            expect.that(
                bool(got[:, :, 0].isfinite().all()),
                "nan in the first row: may token 0 see itself? Mask what lies above the diagonal only, triu(1)",
            )
            expect.equal(
                got,
                self.oracle(q, k, v),
                what=f"{heads} heads on {kv} key/value heads",
                hints=[
                    (
                        self.oracle(q, k, v, causal=False),
                        "tokens look into the future: mask the scores above the diagonal",
                    ),
                    (
                        self.oracle(q.flip(2), k.flip(2), v.flip(2)).flip(2),
                        "tokens see the future and not the past: mask what lies above the diagonal, triu(1)",
                    ),
                    (
                        self.oracle(q, k, v, repeat="tile"),
                        "query head h must read key/value head h // (H/K): neighbours share (repeat_interleave, not repeat)",
                    ),
                    (self.oracle(q, k, v, scale=1.0), "the scores are not divided by sqrt(C)"),
                    (
                        self.oracle(q, k, v, scale=1.0 / size),
                        "the scores are divided by C: it must be sqrt(C)",
                    ),
                ],
            )

    @check(points=3, title="its gradients too: queries, keys and values")
    def test_gradients(self, submission):
        q = torch.randn(1, 4, 5, 6, dtype=torch.float64)
        k, v = torch.randn(2, 1, 2, 5, 6, dtype=torch.float64)
        got = submission.run(probes.attended, q, k, v)
        inputs = [z.clone().requires_grad_() for z in (q, k, v)]
        self.oracle(*inputs).square().sum().backward()
        for name, z in zip("qkv", inputs):
            expect.equal(got[name], z.grad, tol=1e-8, what=f"gradient of {name}")

    @check(points=2, title="large scores do not overflow, and the first token sees itself alone")
    def test_extremes(self, submission):
        q = 300 * torch.randn(1, 2, 4, 8, dtype=torch.float64)
        k, v = (
            300 * torch.randn(1, 1, 4, 8, dtype=torch.float64),
            torch.randn(1, 1, 4, 8, dtype=torch.float64),
        )
        out = submission.run(probes.attended, q, k, v)["out"]
        expect.that(
            bool(out.isfinite().all()),
            "inf or nan for large scores: use softmax, not exp and a division",
        )
        expect.equal(out[:, :, 0], v[:, :, 0].expand(1, 2, 8), what="the first token's output")


class TestParameterCount(Exercise):
    """Parameters in closed form"""

    name = "parameter_count"
    reference = "minitrain.measure.parameters:parameter_count"
    hidden = ("minitrain/measure/parameters.py",)

    @check(points=5, title="three random shapes, tied and untied, to the last parameter")
    def test_random(self, submission):
        for c in shapes():
            expect.equal(
                submission.run(probes.with_shape, c),
                parameters_of(c),
                what=f"parameters of {c}",
                hints=[
                    (
                        parameters_of(c, kv=c["heads"]),
                        "keys and values have kv_heads heads, not heads",
                    ),
                    (parameters_of(c, matrices=2), "SwiGLU has three matrices: gate, up and down"),
                    (
                        parameters_of(c, norms=0),
                        "the norms are missing: D each, two a layer and one at the end",
                    ),
                    (parameters_of(c, norms=1), "each layer has two norms"),
                    (parameters_of(c) - c["hidden_size"], "the last norm is missing: D"),
                    (
                        parameters_of(c, tied=not c["tied"]),
                        "a tied head is the embedding itself: count it once if tied, twice if not",
                    ),
                ],
            )

    @check(points=3, title="Llama 2 7B: 6,738,415,616, and Llama 3.1 405B: 405,853,388,800")
    def test_published(self, submission):
        llama2 = {"vocab_size": 32000, "hidden_size": 4096, "layers": 32, "heads": 32, "kv_heads": 32, "ffn_size": 11008,
                      "head_size": 128, "tied": False, "window": None, "qkv_bias": False}  # fmt: skip
        llama3 = dict(
            llama2,
            vocab_size=128256,
            hidden_size=16384,
            layers=126,
            heads=128,
            kv_heads=8,
            ffn_size=53248,
        )
        for c, want in [(llama2, 6_738_415_616), (llama3, 405_853_388_800)]:
            expect.equal(submission.run(probes.with_shape, c), want, what="parameters")


class TestFlops(Exercise):
    """FLOPs in closed form"""

    name = "flops_per_token"
    reference = "minitrain.measure.flops:flops_per_token"
    hidden = ("minitrain/measure/flops.py", "minitrain/measure/parameters.py")

    @check(points=5, title="three random shapes and lengths, forward and backward")
    def test_random(self, submission):
        for c, length in zip(shapes(), (32, 100, 257)):
            weights = matmul_weights(c)
            attention = 4 * c["layers"] * c["heads"] * c["head_size"] * length
            want = 3 * (2 * weights + attention)
            expect.equal(
                submission.run(probes.with_shape, c, length),
                want,
                what=f"FLOPs a token at length {length} of {c}",
                hints=[
                    (
                        6 * parameters_of(c),
                        "6·P is for large models: the embedding's lookup and the norms multiply nothing, and attention adds QKᵀ and AV",
                    ),
                    (
                        6 * weights,
                        "attention's own products are missing: QKᵀ and AV, 4·L·H·C·T forward",
                    ),
                    (want // 3, "that is the forward alone: backward costs twice as much again"),
                    (
                        want // 3 * 2,
                        "backward is two matmuls for each of the forward's: 3 x in all",
                    ),
                    (want // 2, "a multiply-add is 2 FLOPs"),
                    (6 * weights + attention, "attention has a backward too: 3 x its forward"),
                    (
                        want + 6 * embedding(c),
                        "the embedding is a lookup: it multiplies nothing; only the head does",
                    ),
                    (want - 6 * embedding(c), "the head multiplies, tied or not"),
                    (
                        3 * (2 * weights + attention // 2),
                        "count attention in full, as MFU does, though half of it is masked",
                    ),
                ],
            )

    @check(points=3, title="twice the length: only attention's part doubles")
    def test_length(self, submission):
        c = shapes()[0]
        short, long = (submission.run(probes.with_shape, c, length) for length in (64, 128))
        expect.equal(
            long - short, 12 * c["layers"] * c["heads"] * c["head_size"] * 64, what="the difference"
        )


class TestTrainStep(Exercise):
    """A step over microbatches"""

    name = "train_step"
    reference = "minitrain.training.loop:train_step"
    hidden = ("minitrain/training/loop.py", "minitrain/training/loss.py")

    @check(points=7, title="gradients of one large batch, though microbatches count unequal tokens")
    def test_gradients(self, submission):
        batches = microbatches()
        result = submission.run(probes.stepped, batches, 1e9)
        expect.that(
            len(result["seen"]) == 1,
            f"optimizer.step() ran {len(result['seen'])} times: once a step, after the last microbatch",
        )
        counts = [int((y != IGNORED).sum()) for _, y, *_ in batches]
        total = sum(counts)
        right = gradients_of(batches, [1 / total] * 3)
        means = gradients_of(batches, [1 / (3 * n) for n in counts])
        sums = gradients_of(batches, [1 / n for n in counts])
        last = gradients_of(batches[-1:], [1 / counts[-1]])
        padded = gradients_of(batches, [1 / 36] * 3)
        expect.equal(
            result["seen"][0],
            right,
            tol=1e-9,
            what="the gradient that the optimizer saw",
            hints=[
                (
                    means,
                    "that is the mean of the microbatches' means: a token of a half-empty microbatch counts more. Divide each *sum* by the tokens of all of them",
                ),
                (
                    gradients_of(batches, [1 / total] * 3, packed=False),
                    "the model did not get documents and positions: without them a token reads other documents",
                ),
                (sums, "that adds up the microbatches' means: three times too large, and unequal"),
                (last, "that is the last microbatch's alone: do not zero the gradients in between"),
                (
                    gradients_of(batches, [1.0] * 3),
                    "those are sums: divide by the number of tokens that count",
                ),
                (
                    padded,
                    "that divides by all places, padding too: count the targets that are not -100",
                ),
            ],
        )

    @check(points=3, title="clipped by the norm of all gradients as one long vector")
    def test_clip(self, submission):
        batches = microbatches((12, 12))
        right = gradients_of(batches, [1 / 24] * 2)
        each = [clipped([g], 0.01)[0] for g in right]
        result = submission.run(probes.stepped, batches, 0.01)
        expect.that(len(result["seen"]) == 1, "optimizer.step() must run once")
        expect.equal(
            result["seen"][0],
            clipped(right, 0.01),
            tol=1e-4,
            what="the clipped gradient",
            hints=[
                (
                    right,
                    "nothing was clipped: scale all gradients by clip / norm when the norm is larger",
                ),
                (
                    each,
                    "each tensor was clipped by its own norm: one factor for all keeps the step's direction",
                ),
                (
                    [g.clamp(-0.01, 0.01) for g in right],
                    "the elements were clamped: scale by the norm instead",
                ),
            ],
        )

    @check(points=2, title="no gradient is left for the next step")
    def test_zero(self, submission):
        result = submission.run(probes.stepped, microbatches(), 1.0)
        expect.that(
            result["left"], "gradients are left over: the next step would add to them (zero_grad)"
        )


class TestWarmupCosine(Exercise):
    """Warm-up and cosine"""

    name = "warmup_cosine"
    reference = "minitrain.optimizers.learning_rate:warmup_cosine"
    hidden = ("minitrain/optimizers/learning_rate.py",)

    @check(points=4, title="the knots: first step, end of warm-up, half-way down, after the end")
    def test_knots(self, submission):
        peak, floor = 0.8, 0.1
        cases = [
            (
                0,
                peak / 10,
                "the first step already moves: peak · (step + 1) / warmup, else it is lost",
            ),
            (9, peak, "the last step of the warm-up has the peak"),
            (10, peak, "the cosine starts at the peak"),
            (60, (peak + floor) / 2, "half-way down the cosine is the mean of peak and floor"),
            (110, floor, "at `total` the rate is the floor"),
            (500, floor, "after `total` it stays at the floor: the cosine must not come up again"),
        ]
        for step, want, words in cases:
            got = submission.run(probes.plainly, step, 110, 10, peak, floor)
            expect.equal(got, want, tol=1e-9, what=f"the rate of step {step}", hints=[(got, words)])

    @check(points=2, title="steps of the rise and of the descent, on random schedules")
    def test_random(self, submission):
        for _ in range(3):
            total, warmup = int(torch.randint(30, 200, (1,))), int(torch.randint(2, 20, (1,)))
            rising = int(torch.randint(warmup, (1,)))
            falling = int(torch.randint(warmup, total, (1,)))
            t = (falling - warmup) / (total - warmup)
            cosine = 0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * t))
            for step, want in ((rising, (rising + 1) / warmup), (falling, cosine)):
                got = submission.run(probes.plainly, step, total, warmup, 1.0, 0.2)
                expect.equal(got, want, tol=1e-9, what=f"step {step} of {total}, warm-up {warmup}")


class TestMFU(Exercise):
    """Model FLOPs utilisation"""

    name = "mfu"
    reference = "minitrain.measure.flops:mfu"
    hidden = ("minitrain/measure/flops.py", "minitrain/measure/parameters.py")

    @check(points=6, title="the share of the peak that trains: model FLOPs only")
    def test_value(self, submission):
        for c in shapes()[:2]:
            per_token = 3 * (
                2 * matmul_weights(c) + 4 * c["layers"] * c["heads"] * c["head_size"] * 64
            )
            peak = float(torch.randint(10**9, 10**11, (1,)))
            rate = 0.4 * peak / per_token
            expect.close(
                submission.run(probes.with_shape_between, [rate], c, 64, peak),
                0.4,
                tol=1e-6,
                what="MFU",
                hints=[
                    (0.4 / 3, "that counts the forward alone: backward trains too"),
                    (0.4 * 4 / 3, "that counts a recomputed forward: HFU does, MFU does not"),
                    (40.0, "that is in percent: a share from 0 to 1"),
                    (2.5, "that is upside down"),
                    (
                        0.4 * 64,
                        "`flops_per_token` is for one token already: do not multiply by the length",
                    ),
                ],
            )


class TestTraining(Experiment):
    """Toward the floor"""

    name = "training"

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

    @check(points=4, title="it ends less than twice as high above the floor as the floor itself")
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

    @check(points=7, title="parameters, gradients and optimizer within 3%, activations within 5%")
    def test_prediction(self, table):
        rows = {row["category"]: row for row in table}
        for category, limit in LIMITS.items():
            expect.that(category in rows, f"there is no row of {category}")
            row = rows[category]
            expect.close(
                row["predicted"], row["measured"], tol=limit, what=f"predicted bytes of {category}"
            )


class TestThroughput(Experiment):
    """Throughput and memory"""

    name = "throughput"

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

    @check(points=5, title="of your own last row, as a share of the floor")
    def test_value(self, value, records):
        row = expect.recorded(records, "training")[-1]
        want = row["loss"] / row["floor"] - 1
        percent = abs(value / 100 - want) <= 0.005
        advice = "that is in percent, give a share" if percent else "divide, then subtract 1"
        expect.that(
            abs(value - want) <= 0.005,
            f"got {value:.4g} for a loss of {row['loss']:.4f} over a floor of {row['floor']:.4f}: {advice}",
        )


class TestLargest(Question):
    """What fills the memory"""

    name = "largest"

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
