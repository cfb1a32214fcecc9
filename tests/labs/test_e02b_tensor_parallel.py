"""The checks of lab e02b: tensor parallelism, graded by what is sent and what is kept."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, check
from minitrain.measure.traffic import ring_bytes

from .probes import e02b_tensor_parallel as probes

LAB = "e02b_tensor_parallel"
SIZES = {
    "cpu": {
        "width": 64,
        "features": 96,
        "heads": 8,
        "batch": 2,
        "length": 32,
        "ranks": [1, 2, 4],
        "degrees": [1, 2, 4, 8, 16],
        "real_width": 8192,
        "real_features": 28672,
        "real_tokens": 4096,
    },
    "gpu": {"width": 512, "features": 1536, "length": 512},
    "multi": {"width": 1024, "features": 3072, "length": 1024},
}
HIDDEN = tuple(
    f"minitrain/parallel/{name}.py"
    for name in (
        "collectives/differentiable",
        *("tensor/plain", "tensor/linear", "tensor/layers", "tensor/vocabulary"),
    )
)


# What one process does with the whole layer.
def layer(*names):
    """Random matrices of a layer, by name."""
    shapes = {
        "norm": (probes.WIDTH,), "bias": (probes.WIDTH,), "gate": (probes.FEATURES, probes.WIDTH), "up": (probes.FEATURES, probes.WIDTH),
        "down": (probes.WIDTH, probes.FEATURES), "q": (probes.WIDTH, probes.WIDTH), "k": (probes.WIDTH, probes.WIDTH), "v": (probes.WIDTH, probes.WIDTH),
        "o": (probes.WIDTH, probes.WIDTH),
    }  # fmt: skip
    return {name: torch.randn(shapes[name], dtype=torch.float64) for name in names}


def stream(length):
    return torch.randn(2, probes.BATCH, length, probes.WIDTH, dtype=torch.float64)  # x and dy


def whole_mlp(x, w):
    return (F.silu(x @ w.gate.T) * (x @ w.up.T)) @ w.down.T + w.bias


def whole_attention(x, w):
    q, k, v = (
        (x @ m.T).unflatten(-1, (-1, probes.HEAD_SIZE)).transpose(1, 2) for m in (w.q, w.k, w.v)
    )  # (B, H, T, C)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).flatten(2) @ w.o.T


def whole_sequence_mlp(x, w):
    return x + whole_mlp(F.rms_norm(x, (probes.WIDTH,), w.norm, 1e-6), w)


def one_process(f, whole, x, dy):
    w, x = probes.cut(whole, 0, 1), x.clone().requires_grad_()
    y = f(x, w)
    y.backward(dy)
    return y.detach(), {"x": x.grad, **{name: getattr(w, name).grad for name in whole}}


def sliced(name, gradient, rank, size):
    """The slice of a whole gradient that this rank must have."""
    dim = 0 if name in probes.ROWS else 1 if name in probes.COLUMNS else None
    return gradient if dim is None else gradient.chunk(size, dim)[rank]


def equal_gradients(results, want):
    """Every gradient on every rank is its slice of one process's."""
    size = len(results)
    for rank, result in enumerate(results):
        for name, whole in want.items():
            mine = sliced(name, whole, rank, size)
            got = [r["gradients"][name] for r in results]
            expect.that(
                all(g is not None for g in got), f"the gradient of {name} is None: is it used?"
            )
            known = [(mine * size, f"that is {size} times too large: it was summed once too often")]
            if name in PARTS and _same(sum(got), whole):
                known.append((got[rank], PARTS[name]))
            what = f"rank {rank} of {size}, gradient of {name}"
            expect.equal(result["gradients"][name], mine, what=what, hints=known)


PART = "that is this rank's part of it, and the ranks' parts add up to the gradient: "
OWN_TOKENS = PART + "what is whole and used on each rank's own tokens goes through `tp.copy`"
PARTS = {"x": PART + "let x enter first", "norm": OWN_TOKENS, "bias": OWN_TOKENS}


def _same(a, b):
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def messages(ops):
    return ", ".join(f"{kind} of {nbytes} bytes" for kind, nbytes in ops) or "none"


class TestConjugates(Exercise):
    """Operators in pairs"""

    name = "conjugates"
    reference = "minitrain.parallel.tensor.plain:conjugates"
    hidden = HIDDEN

    @check(points=4, title="values and gradients of both operators (2 and 3 ranks, float64)")
    def test_values(self, submission):
        for ranks in (2, 3):
            x, dy = torch.randn(2, ranks, 5, 3, dtype=torch.float64)
            for rank, got in enumerate(submission.launch(probes.pairs, x, dy, ranks=ranks)):
                for name, y, dx in (
                    ("first", x[rank], dy.sum(0)),
                    ("second", x.sum(0), dy[rank]),
                ):
                    self.compare(
                        f"rank {rank} of {ranks}, {name} operator", got[name], y, dx, x, dy
                    )

    @staticmethod
    def compare(what, got, y, dx, x, dy):
        ranks = len(x)
        expect.equal(
            got["y"],
            y,
            what=f"{what}, forward",
            hints=[
                (x.sum(0), "that is the sum: the first one's forward is `there`"),
                (x.sum(0) / ranks, "that is the average: hand on what `back` gives"),
                *[
                    (x[r], "nothing was summed: the second one's forward is `back`")
                    for r in range(ranks)
                ],
            ],
        )
        expect.that(
            got["dx"] is not None,
            f"{what}: no gradient came back. Make a torch.autograd.Function and return its `.apply`",
        )
        expect.equal(
            got["dx"],
            dx,
            what=f"{what}, backward",
            hints=[
                (dy.sum(0), "that is the sum over ranks: the second one's backward is `there`"),
                (
                    dy.sum(0) / ranks,
                    "that is the average: backward is the sum of what the ranks say",
                ),
                (
                    dx / ranks,
                    "that is divided by the number of ranks: the operators only do `there` and `back`",
                ),
                *[
                    (dy[r], "nothing was summed: the first one's backward is `back`")
                    for r in range(ranks)
                ],
            ],
        )

    @check(points=3, title="neither x nor the gradient that comes back is overwritten")
    def test_unchanged(self, submission):
        x = torch.randn(2, 4, dtype=torch.float64)
        for found in submission.launch(probes.unchanged, x, ranks=2):
            for name, (x_kept, dy_kept) in zip(("first", "second"), found):
                expect.that(
                    x_kept,
                    f"the {name} operator wrote over its argument: an all-reduce works in place, "
                    "hand it x.clone()",
                )
                expect.that(
                    dy_kept,
                    f"the {name} operator's backward wrote over the gradient it was given, which "
                    "another branch may still need: hand it dy.clone()",
                )

    @check(points=3, title="one message each: first in backward, second in forward")
    def test_messages(self, submission):
        x, dy = torch.randn(2, 2, 3, dtype=torch.float64)
        for got in submission.launch(probes.pairs, x, dy, ranks=2):
            for name, want in (("first", (0, 1)), ("second", (1, 0))):
                found = got[name]["forward"], got[name]["backward"]
                expect.that(
                    found == want,
                    f"the {name} operator sent {found[0]} messages forward and {found[1]} backward, "
                    f"expected {want[0]} and {want[1]}: `there` one way, `back` the other, nothing more",
                )


def block_messages(results, payload, name):
    """One all-reduce of B·T·D forward, and one backward."""
    for rank, got in enumerate(results):
        for way in ("forward", "backward"):
            ops = got[way]
            many = (
                "x enters once, and all matrices read that one copy"
                if way == "backward"
                else "sum once, after the last matrix"
            )
            expect.that(
                [kind for kind, _ in ops] == ["all_reduce"],
                f"rank {rank}, {way}: {len(ops)} messages ({messages(ops)}), expected one all-reduce: "
                f"{many}",
            )
            expect.that(
                ops[0][1] == payload,
                f"rank {rank}, {way}: an all-reduce of {ops[0][1]} bytes, expected {payload}, which "
                f"is B·T·D: {name} sends the stream, never its features",
            )


class TestParallelMLP(Exercise):
    """Column, then row"""

    name = "parallel_mlp"
    reference = "minitrain.parallel.tensor.plain:parallel_mlp"
    hidden = HIDDEN

    @check(points=4, title="the output equals one process (2 and 3 ranks, float64)")
    def test_output(self, submission):
        for ranks in (2, 3):
            (x, dy), whole = stream(5), layer("gate", "up", "down", "bias")
            want, _ = one_process(whole_mlp, whole, x, dy)
            bare = want - whole["bias"]
            exchanged, _ = one_process(
                whole_mlp, {**whole, "gate": whole["up"], "up": whole["gate"]}, x, dy
            )
            parts = [
                whole_mlp(x, probes.cut({**whole, "bias": 0 * whole["bias"]}, rank, ranks)).detach()
                for rank in range(ranks)
            ]
            for rank, got in enumerate(submission.launch(probes.block, whole, x, dy, ranks=ranks)):
                expect.equal(
                    got["y"],
                    want,
                    what=f"rank {rank} of {ranks}, the output",
                    hints=[
                        (
                            bare + ranks * whole["bias"],
                            f"the bias is in it {ranks} times, once a rank: add it after the sum",
                        ),
                        (bare, "the bias is missing"),
                        (exchanged, "silu is of gate, not of up"),
                        (
                            parts[rank] + whole["bias"],
                            "that is this rank's part: it leaves through `leave`, which sums",
                        ),
                        (
                            parts[rank],
                            "that is this rank's part: it leaves through `leave`, which sums",
                        ),
                    ],
                )

    @check(points=4, title="every gradient equals its slice of one process's")
    def test_gradients(self, submission):
        for ranks in (2, 3):
            (x, dy), whole = stream(5), layer("gate", "up", "down", "bias")
            _, want = one_process(whole_mlp, whole, x, dy)
            equal_gradients(submission.launch(probes.block, whole, x, dy, ranks=ranks), want)

    @check(points=4, title="one all-reduce of B·T·D forward, one backward")
    def test_messages(self, submission):
        (x, dy), whole = stream(4), layer("gate", "up", "down", "bias")
        block_messages(submission.launch(probes.block, whole, x, dy, ranks=2), x.nbytes, "the MLP")


ORDER = "the features were split as (c h): heads stand one after the other, (h c)"


class TestParallelAttention(Exercise):
    """A rank's own heads"""

    name = "parallel_attention"
    reference = "minitrain.parallel.tensor.plain:parallel_attention"
    hidden = HIDDEN

    @check(points=3, title="the output equals one process (2 and 3 ranks, float64)")
    def test_output(self, submission):
        for ranks in (2, 3):
            (x, dy), whole = stream(5), layer("q", "k", "v", "o")
            want, _ = one_process(whole_attention, whole, x, dy)
            hints = self.mistakes(x, whole, ranks)
            for rank, got in enumerate(submission.launch(probes.block, whole, x, dy, ranks=ranks)):
                what = f"rank {rank} of {ranks}, the output"
                expect.equal(got["y"], want, what=what, hints=hints)

    @staticmethod
    def mistakes(x, whole, ranks):
        """Likely wrong outputs, in words."""
        found = []
        slices = [probes.cut(whole, rank, ranks) for rank in range(ranks)]
        words = {
            "one head": "that is one head of all this rank's features: it has width / head_size heads",
            "later": "tokens read later tokens: attention is causal (is_causal=True)",
            "order": ORDER,
            "order, joined alike": ORDER,
            "layout": "heads read each other, not tokens: q, k and v are (B, heads, T, C)",
        }
        for kind, text in words.items():
            out = 0
            for w in slices:
                split = [x @ m.T for m in (w.q, w.k, w.v)]
                if kind == "one head":
                    q, k, v = (z[:, None] for z in split)
                elif kind.startswith("order"):
                    q, k, v = (
                        z.unflatten(-1, (probes.HEAD_SIZE, -1)).permute(0, 3, 1, 2) for z in split
                    )
                elif kind == "layout":
                    q, k, v = (z.unflatten(-1, (-1, probes.HEAD_SIZE)) for z in split)
                else:
                    q, k, v = (
                        z.unflatten(-1, (-1, probes.HEAD_SIZE)).transpose(1, 2) for z in split
                    )
                read = F.scaled_dot_product_attention(q, k, v, is_causal=kind != "later")
                dims = {"order, joined alike": (0, 2, 3, 1), "layout": (0, 1, 2, 3)}
                joined = read.permute(dims.get(kind, (0, 2, 1, 3))).flatten(2)
                out = out + joined @ w.o.T
            found.append((out.detach(), text))
        for w in slices:
            words = "that is this rank's heads alone: they leave through `leave`, which sums"
            found.append((whole_attention(x, w).detach(), words))
        return found

    @check(points=2, title="every gradient equals its slice of one process's")
    def test_gradients(self, submission):
        (x, dy), whole = stream(5), layer("q", "k", "v", "o")
        _, want = one_process(whole_attention, whole, x, dy)
        equal_gradients(submission.launch(probes.block, whole, x, dy, ranks=3), want)

    @check(points=3, title="one all-reduce of B·T·D forward, one backward")
    def test_messages(self, submission):
        (x, dy), whole = stream(4), layer("q", "k", "v", "o")
        block_messages(
            submission.launch(probes.block, whole, x, dy, ranks=2), x.nbytes, "attention"
        )


class TestSequenceMLP(Exercise):
    """The stream split too"""

    name = "sequence_mlp"
    reference = "minitrain.parallel.tensor.plain:sequence_mlp"
    hidden = HIDDEN

    @check(points=4, title="each rank's tokens equal one process's (2 and 3 ranks, float64)")
    def test_output(self, submission):
        for ranks in (2, 3):
            (x, dy), whole = stream(6), layer("norm", "gate", "up", "down", "bias")
            want, _ = one_process(whole_sequence_mlp, whole, x, dy)
            bare = want - whole["bias"]
            for rank, got in enumerate(
                submission.launch(probes.split_block, whole, x, dy, ranks=ranks)
            ):
                mine = want.chunk(ranks, 1)[rank]
                own = x.chunk(ranks, 1)[rank]
                expect.equal(
                    got["y"],
                    mine,
                    what=f"rank {rank} of {ranks}, the output",
                    hints=[
                        (want, "that is all tokens: end with `tp.reduce_scatter`, which keeps T/N"),
                        (mine - own, "the stream itself is missing: the MLP is added to x"),
                        (
                            (bare + ranks * whole["bias"]).chunk(ranks, 1)[rank],
                            f"the bias is in it {ranks} times: add it after the reduce-scatter",
                        ),
                        (bare.chunk(ranks, 1)[rank], "the bias is missing"),
                    ],
                )

    @check(points=4, title="every gradient is right, also of norm and bias")
    def test_gradients(self, submission):
        for ranks in (2, 3):
            (x, dy), whole = stream(6), layer("norm", "gate", "up", "down", "bias")
            _, want = one_process(whole_sequence_mlp, whole, x, dy)
            results = submission.launch(probes.split_block, whole, x, dy, ranks=ranks)
            dx = want.pop("x")
            for rank, got in enumerate(results):
                expect.that(
                    got["gradients"]["x"] is not None,
                    f"rank {rank}: no gradient reached x; the output must have x's shape, T/N tokens",
                )
                what = f"rank {rank} of {ranks}, gradient of x"
                expect.equal(got["gradients"]["x"], dx.chunk(ranks, 1)[rank], what=what)
            equal_gradients(results, want)

    @check(points=2, title="one all-gather and one reduce-scatter forward, the same backward")
    def test_messages(self, submission):
        (x, dy), whole = stream(4), layer("norm", "gate", "up", "down", "bias")
        for rank, got in enumerate(submission.launch(probes.split_block, whole, x, dy, ranks=2)):
            for way in ("forward", "backward"):
                ops = [op for op in got[way] if op[1] >= x.nbytes // 2]
                small = sum(nbytes for op, nbytes in got[way] if nbytes < x.nbytes // 2)
                kinds = sorted(kind for kind, _ in ops)
                expect.that(
                    kinds == ["all_gather", "reduce_scatter"]
                    and all(n == x.nbytes for _, n in ops),
                    f"rank {rank}, {way}: {messages(ops)}; expected one all-gather and one "
                    f"reduce-scatter of {x.nbytes} bytes, B·T·D. Gather the norm's output once, "
                    "for gate and up; an all-reduce sends as much and leaves every rank all tokens",
                )
                expect.that(
                    small <= 2 * probes.WIDTH * 8,
                    f"rank {rank}, {way}: {small} bytes beside those; norm and bias have "
                    f"{2 * probes.WIDTH * 8}, and only their gradients are summed",
                )

    @check(points=2, title="the norm works on T/N tokens: one tensor of all tokens is kept")
    def test_memory(self, submission):
        (x, dy), whole = stream(6), layer("norm", "gate", "up", "down", "bias")
        for rank, got in enumerate(submission.launch(probes.split_block, whole, x, dy, ranks=2)):
            expect.that(
                got["whole_kept"] <= 1,
                f"rank {rank} keeps {got['whole_kept']} tensors of all B·T·D for backward, one is "
                "enough: normalise this rank's tokens first, then gather",
            )


class TestEmbed(Exercise):
    """V/N rows of the embedding"""

    name = "embed"
    reference = "minitrain.parallel.tensor.plain:embed"
    hidden = HIDDEN

    @staticmethod
    def inputs(ranks, rows):
        """Every token of the vocabulary at least once, in a random order."""
        tokens = torch.randperm(3 * ranks * rows).view(3, -1) % (ranks * rows)
        whole = torch.randn(ranks * rows, 4, dtype=torch.float64)
        return tokens, whole, torch.randn(*tokens.shape, 4, dtype=torch.float64)

    @check(points=3, title="every rank has every token's row (2 and 3 ranks, float64)")
    def test_rows(self, submission):
        for ranks, rows in ((2, 5), (3, 7)):
            tokens, whole, dy = self.inputs(ranks, rows)
            want = F.embedding(tokens, whole)
            clamped, wrapped, own = self.mistakes(tokens, whole, ranks)
            for rank, got in enumerate(
                submission.launch(probes.look_up, tokens, whole, dy, ranks=ranks)
            ):
                expect.equal(
                    got["y"],
                    want,
                    what=f"rank {rank} of {ranks}, the rows",
                    hints=[
                        (
                            clamped,
                            "a rank without the token's row added another one's: it adds zeros",
                        ),
                        (
                            wrapped,
                            "a rank without the token's row added another one's: it adds zeros",
                        ),
                        (own[rank], "that is this rank's part: `tp.reduce` adds up the ranks'"),
                        (
                            want.masked_fill((tokens % rows == rows - 1)[..., None], 0),
                            "the last row of each rank is missing: elsewhere is len(weight) and more",
                        ),
                    ],
                )

    @staticmethod
    def mistakes(tokens, whole, ranks):
        """Rows when nothing is masked (clamped, or row 0), and each rank's own part."""
        rows = len(whole) // ranks
        places = [tokens - rank * rows for rank in range(ranks)]
        slices = whole.chunk(ranks)
        inside = [((p >= 0) & (p < rows))[..., None] for p in places]
        clamped = [w[p.clamp(0, rows - 1)] for w, p in zip(slices, places)]
        first = [w[p.where(i[..., 0], 0)] for w, p, i in zip(slices, places, inside)]
        own = [c * i for c, i in zip(clamped, inside)]
        return sum(clamped), sum(first), own

    @check(points=2, title="each rank's rows get their gradient, and no other")
    def test_gradients(self, submission):
        tokens, whole, dy = self.inputs(3, 4)
        leaf = whole.clone().requires_grad_()
        F.embedding(tokens, leaf).backward(dy)
        for rank, got in enumerate(submission.launch(probes.look_up, tokens, whole, dy, ranks=3)):
            mine = leaf.grad.chunk(3)[rank]
            expect.that(
                got["dw"] is not None, f"rank {rank}: no gradient reached the embedding's rows"
            )
            expect.equal(
                got["dw"],
                mine,
                what=f"rank {rank}, gradient of its rows",
                hints=[(mine * 3, "that is 3 times too large: reduce hands the gradient on, once")],
            )

    @check(points=3, title="one all-reduce of B·T·D, whatever the vocabulary")
    def test_messages(self, submission):
        tokens, whole, dy = self.inputs(2, 30)
        tokens, dy = tokens[:, :3], dy[:, :3].contiguous()
        for rank, got in enumerate(submission.launch(probes.look_up, tokens, whole, dy, ranks=2)):
            expect.that(
                got["forward"] == [("all_reduce", dy.nbytes)] and got["backward"] == 0,
                f"rank {rank} sent {messages(got['forward'])} forward and {got['backward']} messages "
                f"backward, expected one all-reduce of {dy.nbytes} bytes, B·T·D: the matrix stays "
                f"where it is ({whole.nbytes} bytes), and the gradient of a sum is everybody's",
            )


class TestVocabularyLoss(Exercise):
    """Cross-entropy without the whole logits"""

    name = "vocabulary_loss"
    reference = "minitrain.parallel.tensor.plain:vocabulary_loss"
    hidden = HIDDEN

    @staticmethod
    def inputs(ranks, tokens, width, scale=1.0):
        logits = scale * torch.randn(tokens, ranks * width, dtype=torch.float64)
        return logits, torch.randint(ranks * width, (tokens,))

    @check(points=3, title="the loss equals one process, also of logits near 1000")
    def test_loss(self, submission):
        for ranks, width, scale in ((2, 5, 1.0), (3, 7, 400.0)):
            logits, targets = self.inputs(ranks, 11, width, scale)
            want = F.cross_entropy(logits, targets)
            for rank, got in enumerate(
                submission.launch(probes.loss_of, logits, targets, ranks=ranks)
            ):
                expect.that(
                    bool(got["loss"].isfinite().all()),
                    f"got {got['loss']}: exp of a large logit overflows: take each token's maximum "
                    "over all ranks off first",
                )
                hints = self.mistakes(logits, targets, ranks, rank)
                what = f"rank {rank} of {ranks}, the loss"
                expect.equal(got["loss"], want, what=what, hints=hints)

    @staticmethod
    def mistakes(logits, targets, ranks, rank):
        """Likely wrong losses of one rank, in words."""
        parts = logits.chunk(ranks, -1)
        width = parts[0].shape[-1]
        places = [targets - r * width for r in range(ranks)]
        inside = [(p >= 0) & (p < width) for p in places]
        log_sums, aims = logits.logsumexp(-1), logits[torch.arange(len(targets)), targets]
        tops = [part.amax(-1) for part in parts]
        mixed = sum((part - top[:, None]).exp().sum(-1) for part, top in zip(parts, tops))

        def picked(at):
            """The target logits when nothing is masked."""
            pairs = zip(parts, (at(p, i) for p, i in zip(places, inside)))
            return sum(part.gather(-1, places[:, None])[:, 0] for part, places in pairs)

        unmasked = "a rank without the target's column added another logit: it adds zero"
        return [
            ((log_sums - aims).sum(), "that is the sum over tokens: take the mean"),
            (log_sums.mean(), "the target's logit is missing from it"),
            (
                (log_sums - logits.amax(-1) - aims).mean(),
                "the maximum was taken off before exp: add it to the logarithm again",
            ),
            (
                (log_sums - aims * inside[rank]).mean(),
                "the target's logit is on one rank: `tp.reduce` gives it to all",
            ),
            (
                (parts[rank].logsumexp(-1) - aims).mean(),
                "the sum of exponentials is this rank's own: `tp.reduce` adds up the ranks'",
            ),
            (
                (tops[rank] + mixed.log() - aims).mean(),
                "the maximum is this rank's own: what is added up needs one for all ranks, `tp.max`",
            ),
            ((log_sums - picked(lambda p, i: p.clamp(0, width - 1))).mean(), unmasked),
            ((log_sums - picked(lambda p, i: p.where(i, 0))).mean(), unmasked),
        ]

    @check(points=3, title="the gradient is softmax minus one-hot, over n")
    def test_gradients(self, submission):
        logits, targets = self.inputs(3, 11, 5)
        leaf = logits.clone().requires_grad_()
        F.cross_entropy(leaf, targets).backward()
        softmax = logits.softmax(-1) / 11
        for rank, got in enumerate(submission.launch(probes.loss_of, logits, targets, ranks=3)):
            mine = leaf.grad.chunk(3, -1)[rank]
            expect.that(
                got["dlogits"] is not None,
                f"rank {rank}: no gradient reached the logits; group operations cut it off, "
                "`tp.reduce` hands it on",
            )
            expect.equal(
                got["dlogits"],
                mine,
                what=f"rank {rank}, gradient of its logits",
                hints=[
                    (mine * 3, "that is 3 times too large: it was summed once too often"),
                    (
                        softmax.chunk(3, -1)[rank],
                        "that is the softmax: the target's logit has lost its gradient",
                    ),
                    (
                        mine - softmax.chunk(3, -1)[rank],
                        "that is the target's share: the log-sum has lost its gradient",
                    ),
                ],
            )

    @check(points=2, title="a few numbers a token are sent, not logits")
    def test_bytes(self, submission):
        tokens, ranks = 6, 2
        logits, targets = self.inputs(ranks, tokens, 200)
        for rank, got in enumerate(submission.launch(probes.loss_of, logits, targets, ranks=ranks)):
            numbers = got["payload"] / 8 / tokens
            expect.that(
                numbers <= 4 * ranks,
                f"rank {rank} took part in messages of {numbers:.0f} numbers a token; three are "
                "enough: the maximum, the sum of exponentials, the target's logit. The logits stay",
            )

    @check(points=2, title="no tensor of n·V is ever made")
    def test_memory(self, submission):
        logits, targets = self.inputs(2, 6, 200)
        for rank, got in enumerate(submission.launch(probes.loss_of, logits, targets, ranks=2)):
            expect.that(
                got["largest"] < logits.numel(),
                f"rank {rank} made a tensor of {got['largest']} numbers: the whole logits have "
                f"{logits.numel()}, and a rank's own are {logits.numel() // 2}",
            )


# ---- experiments ----


def traffic(row):
    """Bytes a rank sends in a layer by the closed form: (forward, backward)."""
    ranks, numbers = row["ranks"], row["batch"] * row["length"] * row["width"]
    gather = ring_bytes("all_gather", 4 * numbers, ranks)
    norms = 3 * ring_bytes("all_reduce", 4 * row["width"], ranks)
    if row["variant"] == "tensor":
        return 4 * gather, 4 * gather
    again = 2 if row["variant"] == "gathered again" else 0
    return 4 * gather, (4 + again) * gather + norms


VARIANTS = ("tensor", "sequence", "gathered again")
WHOLES = {"tensor": 4, "sequence": 2, "gathered again": 0}  # tensors of B·T·D kept by every rank


def stream_bytes(row):
    return 4 * row["batch"] * row["length"] * row["width"]


def by_variant(table):
    return {(row["variant"], row["ranks"]): row for row in table}


class TestTraffic(Experiment):
    """Bytes a layer"""

    name = "traffic"

    @check(points=5, title="forward and backward send exactly what the closed form says")
    def test_bytes(self, table):
        for row in table:
            for way, want in zip(("forward", "backward"), traffic(row)):
                got = row[f"{way}_bytes"]
                expect.that(
                    got == want,
                    f"{row['variant']} on {row['ranks']} ranks, {way}: {got} bytes measured, the "
                    f"closed form gives {want} for B·T·D = {row['batch']}·{row['length']}·{row['width']}",
                )

    @check(points=4, title="tensor: 2 all-reduces each way; sequence: gathers and scatters instead")
    def test_kinds(self, table):
        rows = by_variant(table)
        for variant in VARIANTS:
            expect.that((variant, 4) in rows, f"there is no row of '{variant}' on 4 ranks")
        row = rows["tensor", 4]
        expect.that(
            row["all_reduces"] == 4,
            f"tensor: {row['all_reduces']} all-reduces a layer, expected 4, two each way",
        )
        row = rows["sequence", 4]
        counts = row["all_gathers"], row["reduce_scatters"]
        expect.that(
            counts == (4, 4),
            f"sequence: {counts[0]} all-gathers and {counts[1]} reduce-scatters, expected 4 and 4",
        )


class TestActivations(Experiment):
    """Bytes kept for backward"""

    name = "activations"

    @check(points=4, title="sequence keeps less than tensor, and gathered again 1/N of one rank")
    def test_order(self, table):
        rows = by_variant(table)
        for variant in VARIANTS:
            for ranks in (1, 4):
                expect.that((variant, ranks) in rows, f"no row of '{variant}' on {ranks} ranks")
        kept = {variant: rows[variant, 4]["kept_bytes"] for variant in VARIANTS}
        expect.that(
            kept["tensor"] > kept["sequence"] > kept["gathered again"],
            f"on 4 ranks a layer keeps {kept}: each should be less than the one before",
        )
        whole = rows["gathered again", 1]["kept_bytes"]
        expect.close(
            rows["gathered again", 4]["kept_bytes"],
            whole / 4,
            tol=0.02,
            what="what 4 ranks keep each, gathered again: a quarter of one rank's",
        )

    @check(
        points=3, title="closed form: 4 tensors of B·T·D stay whole, of sequence 2, the rest / N"
    )
    def test_closed_form(self, table):
        rows = by_variant(table)
        for (variant, ranks), row in rows.items():
            whole = WHOLES.get(variant, 0) * stream_bytes(row)
            one = rows.get((variant, 1))
            expect.that(one is not None, f"there is no row of '{variant}' on 1 rank")
            want = whole + (one["kept_bytes"] - whole) / ranks
            words = f"{variant} on {ranks} ranks: {whole} bytes whole, the rest cut in {ranks}"
            expect.close(row["kept_bytes"], want, tol=0.03, what=words)


class TestDegrees(Experiment):
    """Efficiency against the degree"""

    name = "degrees"

    @check(points=4, title="1 to 16 ranks; efficiency is compute over step, and falls")
    def test_rows(self, table):
        for row in table:
            want = row["compute_seconds"] / row["step_seconds"]
            what = f"{row['network']}, {row['ranks']} ranks: compute / step"
            expect.close(row["efficiency"], want, tol=0.01, what=what)
        for network in {row["network"] for row in table}:
            own = sorted((r for r in table if r["network"] == network), key=lambda r: r["ranks"])
            ranks = [row["ranks"] for row in own]
            expect.that(
                ranks == [1, 2, 4, 8, 16], f"{network}: ranks {ranks}, expected 1, 2, 4, 8, 16"
            )
            falls = all(a["efficiency"] > b["efficiency"] for a, b in pairwise(own))
            expect.that(
                falls,
                f"{network}: efficiencies {[round(r['efficiency'], 3) for r in own]} should fall: the "
                "messages stay as long while the matrices shrink",
            )

    @check(
        points=5,
        title="a layer waits for four all-reduces, and a narrow way out of the node costs most",
    )
    def test_order(self, table):
        for row in table:
            if row["ranks"] > 1:
                expect.close(
                    row["step_seconds"] - row["compute_seconds"],
                    4 * row["all_reduce_seconds"],
                    tol=0.05,
                    what=f"{row['network']}, {row['ranks']} ranks: waiting against 4 all-reduces",
                )
        at = {(row["network"], row["ranks"]): row["efficiency"] for row in table}
        order = [at.get((network, 16)) for network in NETWORKS]
        expect.that(None not in order, f"16 ranks are asked for on {', '.join(NETWORKS)}")
        expect.that(
            order[1] > 2 * order[2] and order[0] > 2 * order[3],
            f"efficiency on 16 ranks: {dict(zip(NETWORKS, order))}; one card for 8 ranks, or no NVLink "
            "at all, should cost more than a half",
        )


NETWORKS = (
    "NVLink for all 16",
    "nodes of 8, a card each",
    "nodes of 8, one card",
    "no NVLink, a card each",
)


class TestSequenceTraffic(Question):
    """What sequence parallelism sends"""

    name = "sequence_traffic"

    @check(points=5, title="bytes of the sequence layer over those of the tensor layer, 4 ranks")
    def test_value(self, value, records):
        rows = by_variant(expect.recorded(records, "traffic"))
        sent = {
            variant: rows[variant, 4]["forward_bytes"] + rows[variant, 4]["backward_bytes"]
            for variant in VARIANTS
        }
        want = sent["sequence"] / sent["tensor"]
        hints = [
            (sent["gathered again"] / sent["tensor"], "that is the row 'gathered again'"),
            (1.25, "that is the row 'gathered again'"),
            (0.5, "a reduce-scatter sends half of an all-reduce, but an all-gather comes with it"),
            (1 / 4, "the memory of the stream shrinks to 1/N, its messages do not"),
        ]
        expect.close(value, want, tol=0.02, what="sequence over tensor", hints=hints)


class TestMemorySaved(Question):
    """What two more gathers buy"""

    name = "memory_saved"

    @check(points=5, title="bytes kept on 8 ranks, by the closed form: tensor over gathered again")
    def test_value(self, value, records):
        rows = by_variant(expect.recorded(records, "activations"))
        for variant in ("tensor", "gathered again"):
            expect.that((variant, 1) in rows, f"your table has no row of '{variant}' on 1 rank")
        one, again = rows["tensor", 1], rows["gathered again", 1]["kept_bytes"]
        whole = 4 * stream_bytes(one)
        kept = {n: whole + (one["kept_bytes"] - whole) / n for n in (4, 8)}
        want = kept[8] / (again / 8)
        hints = [
            (1 / want, "that is upside down: how many times as much does 'tensor' keep?"),
            (kept[4] / (again / 4), "that is on four ranks: eight are asked for"),
            (8.0, "the features were cut in 8 already: only what was whole shrinks by 8"),
            (
                (whole + one["kept_bytes"] / 8) / (again / 8),
                "4·S is in the one rank's: take it off first",
            ),
        ]
        expect.close(value, want, tol=0.02, what="tensor over gathered again", hints=hints)


class TestPastTheNode(Question):
    """Twice the GPUs"""

    name = "past_the_node"

    @check(points=5, title="how many times as fast 16 ranks are as 8, nodes of 8 with one card")
    def test_value(self, value, records):
        rows = {(row["network"], row["ranks"]): row for row in expect.recorded(records, "degrees")}
        network = NETWORKS[2]
        for ranks in (8, 16):
            expect.that((network, ranks) in rows, f"no row of '{network}' on {ranks} ranks")
        eight, sixteen = rows[network, 8], rows[network, 16]
        want = eight["step_seconds"] / sixteen["step_seconds"]
        hints = [
            (1 / want, "that is upside down: faster is more than 1, slower is less"),
            (2.0, "the matrices take half the time, the messages do not: compare step_seconds"),
            (
                sixteen["efficiency"] / eight["efficiency"],
                "that compares efficiencies; 16 ranks also have half as much to compute each",
            ),
        ]
        expect.close(value, want, tol=0.02, what="step of 8 over step of 16", hints=hints)
