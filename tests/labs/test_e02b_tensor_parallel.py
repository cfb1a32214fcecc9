"""The checks of lab e02b: tensor parallelism, graded by what is sent and what is kept."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F

from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.measure.traffic import ring_bytes
from minitrain.words import plural

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


def kept_more(one_rank, again_one_rank, stream, ranks):
    """What *tensor* keeps over what *gathered again* keeps: four tensors of it are never cut."""
    return (4 * stream + (one_rank - 4 * stream) / ranks) / (again_one_rank / ranks)


REVEALS = {
    "layer_traffic": Reveal(
        "measured",
        "8(N-1)/N times S: four all-reduces, two in forward and two in backward, each 2(N-1)/N",
        formula=lambda ranks: 8 * (ranks - 1) / ranks,
    ),
    "kept": Reveal(
        "measured",
        "four tensors of S bytes stay whole on every rank; with more ranks they weigh more",
        formula=kept_more,
    ),
    "node_message": Reveal(
        "emulated",
        "2(N-1)/N times S at the data sheet's 450 GB/s, in ms; measured links give less, and have a latency",
        formula=lambda nbytes, ranks: 1e3 * 2 * (ranks - 1) / ranks * nbytes / 450e9,
    ),
}
HIDDEN = tuple(
    f"minitrain/parallel/{name}.py"
    for name in (
        "collectives/differentiable",
        *("tensor/plain", "tensor/linear", "tensor/layers", "tensor/vocabulary"),
    )
)


ROWS, COLUMNS = ("q", "k", "v", "gate", "up"), ("o", "down")
MLP, ATTENTION = ("gate", "up", "down", "bias"), ("q", "k", "v", "o")


# What one process does with the whole layer.
def case(names, batch=3, length=6, width=12, features=18, head_size=2, dtype=torch.float64,
         is_split=False):  # fmt: skip
    """Random x, dy and matrices; 2 and 3 ranks must divide what is cut."""
    shapes = dict.fromkeys("qkvo", (width, width)) | {"norm": (width,), "bias": (width,)}
    shapes |= dict.fromkeys(("gate", "up"), (features, width)) | {"down": (width, features)}
    x, dy = torch.randn(2, batch, length, width, dtype=dtype)
    whole = {name: torch.randn(shapes[name], dtype=dtype) for name in names}
    return {"x": x, "dy": dy, "whole": whole, "head_size": head_size, "is_split": is_split}


def cases(names, ranks):
    """Other shapes, head sizes, a dtype."""
    return [
        case(names, length=5),
        case(names, batch=1, length=1, head_size=12 // ranks),
        case(names, batch=2, length=7, width=24, features=6, head_size=4),
        case(names, length=4, dtype=torch.float32),
    ]


def whole_mlp(x, w, head_size=None):
    return (F.silu(x @ w["gate"].T) * (x @ w["up"].T)) @ w["down"].T + w["bias"]


def whole_attention(x, w, head_size):
    q, k, v = (
        (x @ w[name].T).unflatten(-1, (-1, head_size)).transpose(1, 2) for name in "qkv"
    )  # (B, H, T, C)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).flatten(2) @ w["o"].T


def whole_sequence_mlp(x, w, head_size=None):
    return x + whole_mlp(F.rms_norm(x, x.shape[-1:], w["norm"], 1e-6), w)


def one_process(f, made, **other):
    """The output, and the gradients of x and of every matrix; other: matrices to exchange."""
    w = {n: m.clone().requires_grad_() for n, m in {**made["whole"], **other}.items()}
    x = made["x"].clone().requires_grad_()
    y = f(x, w, made["head_size"])
    y.backward(made["dy"])
    return y.detach(), {"x": x.grad, **{name: matrix.grad for name, matrix in w.items()}}


def sliced(name, matrix, rank, size):
    """The slice of a whole matrix, or of its gradient, that this rank has: rows of what makes
    features, columns of what reads them."""
    dim = 0 if name in ROWS else 1 if name in COLUMNS else None
    return matrix if dim is None else matrix.chunk(size, dim)[rank]


def slices(whole, rank, size):
    """This rank's, as leaves."""
    return {n: sliced(n, m, rank, size).clone().requires_grad_() for n, m in whole.items()}


def tokens_of(x, rank, size, is_split=True):
    return x.chunk(size, 1)[rank].clone() if is_split else x.clone()


def given_to(rank, size, made):
    """x, the slices of the matrices, and dy of one rank."""
    x, dy = (tokens_of(made[key], rank, size, made["is_split"]) for key in ("x", "dy"))
    return x.requires_grad_(), slices(made["whole"], rank, size), dy


def launched(submission, probe, made, ranks, rest, watched=False):
    """results[rank][case]; rest(case): what is given beside x, w, dy."""
    calls = [[(*given_to(r, ranks, one), *rest(one)) for one in made] for r in range(ranks)]
    return in_turn(submission, probe, calls, ["x", "w", "dy"] if watched else [])


def in_turn(submission, probe, calls, watched=()):
    """results[rank][call] of calls[rank]; watched: names of arguments, if they must be as they were."""
    results = submission.launch(probe, calls, ranks=len(calls))
    for rank, (result, given) in enumerate(zip(results, calls) if watched else ()):
        expect.left_alone(result, given, watched, what=f"rank {rank} of {len(calls)}")
        expect.that(
            all(call["out"].get("as given", True) for call in result),
            f"rank {rank} of {len(calls)}: an attribute of `w` was set. It is the caller's, whose matrices "
            "change at the next step: keep what you make in names of your own",
        )
    found = [[call["out"] for call in result] for result in results]
    for own, notes in zip(found, submission.notes):
        each_way(own, notes, sent_in)
    return found


def each_way(calls, notes, read):
    """To each of a rank's calls, what the relay noted in its forward and in its backward."""
    ways = ("forward", "backward")
    for way in ways:
        for call, run in zip(calls, relayed.runs(notes, way, len(calls), (*ways, "inference"))):
            call[way] = read(run)


def sent_in(run):
    return [(op.kind, op.payload_bytes) for op in relayed.operations(run)]


def blocks(submission, made, ranks, watched=False):
    def rest(one):
        return one["head_size"], one["is_split"]

    return launched(submission, probes.blocks, made, ranks, rest, watched)


def equal_gradients(results, want):
    """Every gradient on every rank is its slice of one process's."""
    size = len(results)
    for name, whole in want.items():
        got = [result["gradients"][name] for result in results]
        expect.that(all(g is not None for g in got), f"the gradient of {name} is None: is it used?")
        for rank in range(size):
            mine = sliced(name, whole, rank, size)
            known = [(mine * size, f"that is {size} times too large: it was summed once too often")]
            if name in PARTS and _same(sum(got), whole):
                known.append((got[rank], PARTS[name]))
            what = f"rank {rank} of {size}, gradient of {name}"
            expect.equal(got[rank], mine, what=what, hints=known)


PART = "that is this rank's part of it, and the ranks' parts add up to the gradient: "
OWN_TOKENS = PART + "what is whole and used on each rank's own tokens goes through `tp.copy`"
PARTS = {"x": PART + "let x enter first", "norm": OWN_TOKENS, "bias": OWN_TOKENS}


def _same(a, b):
    return a.shape == b.shape and expect.difference(a, b) is None


def messages(ops):
    return ", ".join(f"{kind} of {nbytes} bytes" for kind, nbytes in ops) or "none"


SEVERAL = (
    "one pair alone was right. This is several at once, and two of them change the shape: each needs "
    "its own `there` and `back`, and what these return is the result"
)
OF_PAIR = {
    "sum": "",
    "turn": ", of a second pair",
    "gather": ", of a pair that changes the shape",
    "fold": ", of a pair that changes the shape",
}


class TestConjugates(Exercise):
    """Operators in pairs"""

    name = "conjugates"
    reference = "minitrain.parallel.tensor.plain:conjugates"
    hidden = HIDDEN

    F64, F32 = torch.float64, torch.float32
    SHAPES = (((5, 3), F64), ((), F64), ((2, 3, 2), F32), ((5, 3), F64))
    ALIKE, EVERY = ("sum", "turn"), ("sum", "turn", "gather", "fold")

    @classmethod
    def calls(cls, ranks, names):
        """Of each pair both operators, several times: (pair, which, xs, dys), a tensor a rank."""

        def draw(shape, dtype=torch.float64):
            return torch.randn(ranks, *shape, dtype=dtype)

        calls = [
            (name, which, draw(shape, dtype), draw(shape, dtype))
            for name in names
            if name in cls.ALIKE
            for shape, dtype in cls.SHAPES
            for which in (0, 1)
        ]
        shapes = {"gather": ((2, 3, 4), (2, 3 * ranks, 4)), "fold": ((4, 3), (2, 3))}
        for name, (one, other) in shapes.items():
            if name in names:
                calls += [(name, 0, draw(one), draw(other)), (name, 1, draw(other), draw(one))]
        return calls

    @staticmethod
    def applied(name, which, tensors):
        """What the first (0) or second (1) operator's function makes of every rank's tensor."""
        does = {
            "sum": (lambda: tensors, lambda: tensors.sum(0).expand_as(tensors)),
            "turn": (lambda: 2 * tensors, lambda: -tensors),
            "gather": (
                lambda: torch.cat(list(tensors), 1).expand(len(tensors), -1, -1, -1),
                lambda: torch.stack(tensors.sum(0).chunk(len(tensors), 1)),
            ),
            "fold": (
                lambda: 3 * sum(tensors.chunk(2, 1)),
                lambda: -torch.cat([tensors, tensors], 1),
            ),
        }
        return does[name][which]()

    def launched(self, submission, ranks, names):
        """(what it is, the call, what came of it, rank), for every rank and call."""
        calls = self.calls(ranks, names)
        with expect.because({"": SEVERAL} if names == self.EVERY else {}):
            results = submission.launch(probes.pairs, calls, ranks=ranks)
        for rank, result in enumerate(results):
            each_way(result, submission.notes[rank], relayed.labels)
            for made, got in zip(calls, result):
                kind, where = "first" if made[1] == 0 else "second", OF_PAIR[made[0]]
                yield f"rank {rank} of {ranks}, {kind} operator{where}", made, got, rank

    @check(points=4, title="values and gradients of both operators, of several pairs at once")
    def test_values(self, submission):
        for ranks, names in ((2, ("sum",)), (3, self.EVERY)):
            for what, (name, which, x, dy), got, rank in self.launched(submission, ranks, names):
                y, dx = self.applied(name, which, x)[rank], self.applied(name, 1 - which, dy)[rank]
                hinted = (x, dy) if name == "sum" else (x[:0], dy[:0])
                self.compare(what, got, y, dx, *hinted)

    @staticmethod
    def compare(what, got, y, dx, x, dy):
        ranks = max(len(x), 1)
        expect.equal(
            got["out"],
            y,
            what=f"{what}, forward",
            hints=[
                (x.sum(0), "that is the sum: the first one's forward is `there`"),
                (x.sum(0) / ranks, "that is the average: hand on what `back` gives"),
                *[(own, "nothing was summed: the second one's forward is `back`") for own in x],
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
                    (own, "nothing was summed: the first one's backward is `back`")
                    for own in dy
                ],
            ],
        )  # fmt: skip

    @check(points=3, title="neither x nor the gradient that comes back is overwritten")
    def test_unchanged(self, submission):
        for what, (_, _, x, dy), got, rank in self.launched(submission, 2, self.ALIKE):
            expect.that(
                torch.equal(got["x"], x[rank]) and torch.equal(got["plain"], x[rank]),
                f"{what}: it wrote over its argument. `there` and `back` may work in place, as an all-reduce "
                "does: hand it x.clone(), also where x needs no gradient",
            )
            expect.that(
                torch.equal(got["dy"], dy[rank]),
                f"{what}: its backward wrote over the gradient it was given, which another branch may "
                "still need: hand it dy.clone()",
            )
            expect.that(
                _same(got["y"], got["out"]),
                f"{what}: what it had returned was changed by a later call or backward: return a tensor of its own",
            )

    @check(points=3, title="`there` one way, `back` the other, once each and nothing more")
    def test_messages(self, submission):
        for what, (_, which, _, _), got, _ in self.launched(submission, 2, self.ALIKE):
            want = [["there"], ["back"]] if which == 0 else [["back"], ["there"]]
            found = [got["forward"], got["backward"]]
            expect.that(
                found == want,
                f"{what}: forward called {self.named(found[0])} and backward {self.named(found[1])}, "
                f"expected {self.named(want[0])} and {self.named(want[1])}: each is a message, so nothing more",
            )

    @staticmethod
    def named(called):
        return " and ".join(f"`{name}`" for name in called) or "nothing"


def block_messages(results, made, name):
    """One all-reduce of B·T·D forward, and one backward."""
    for number, one in enumerate(made):
        payload = one["x"].nbytes
        for rank, result in enumerate(results):
            for way in ("forward", "backward"):
                ops = result[number][way]
                many = (
                    "x enters once, and all matrices read that one copy"
                    if way == "backward"
                    else "sum once, after the last matrix"
                )
                expect.that(
                    [kind for kind, _ in ops] == ["all_reduce"],
                    f"rank {rank}, {way}: {plural(len(ops), 'message')} ({messages(ops)}), expected one all-reduce: "
                    f"{many}",
                )
                expect.that(
                    ops[0][1] == payload,
                    f"rank {rank}, {way}: an all-reduce of {ops[0][1]} bytes, expected {payload}, which "
                    f"is B·T·D: {name} sends the stream, never its features",
                )


def right_gradients(results, made, f):
    """Of several tokens: with one, nothing but rounding reaches q and k."""
    for number, one in enumerate(made):
        if one["x"].shape[1] == 1:
            continue
        _, want = one_process(f, one)
        equal_gradients([result[number] for result in results], want)


def right_on_split_tokens(submission, names, f):
    """The output where `enter` gathers the tokens and `leave` sums and cuts them."""
    ranks, made = 2, [case(names, is_split=True)]
    words = "here x has T/N tokens: `enter` gathers them, `leave` cuts again; read the shape after x entered"
    with expect.because({"": words}):
        results = blocks(submission, made, ranks)
    want, _ = one_process(f, made[0])
    for rank, result in enumerate(results):
        what = f"rank {rank} of {ranks}, with `tp.all_gather` and `tp.reduce_scatter`, the output"
        expect.equal(result[0]["y"], tokens_of(want, rank, ranks), what=what)


class TestParallelMLP(Exercise):
    """Column, then row"""

    name = "parallel_mlp"
    reference = "minitrain.parallel.tensor.plain:parallel_mlp"
    hidden = HIDDEN

    @check(points=4, title="the output equals one process (2 and 3 ranks, several shapes)")
    def test_output(self, submission):
        for ranks in (2, 3):
            made = cases(MLP, ranks)
            results = blocks(submission, made, ranks, watched=True)
            for number, one in enumerate(made):
                want, _ = one_process(whole_mlp, one)
                for rank, result in enumerate(results):
                    hints = self.mistakes(one, want, rank, ranks)
                    what = f"rank {rank} of {ranks}, the output"
                    expect.equal(result[number]["y"], want, what=what, hints=hints)
        right_on_split_tokens(submission, MLP, whole_mlp)

    @staticmethod
    def mistakes(one, want, rank, ranks):
        """Likely wrong outputs, in words."""
        whole = one["whole"]
        bare = want - whole["bias"]
        exchanged, _ = one_process(whole_mlp, one, gate=whole["up"], up=whole["gate"])
        mine = {n: sliced(n, matrix, rank, ranks) for n, matrix in whole.items()}
        part = whole_mlp(one["x"], mine)
        leaves = "that is this rank's part: it leaves through `leave`, which sums"
        return [
            (
                bare + ranks * whole["bias"],
                f"the bias is in it {ranks} times, once a rank: add it after the sum",
            ),
            (bare, "the bias is missing"),
            (exchanged, "silu is of gate, not of up"),
            (part, leaves),
            (part - whole["bias"], leaves),
        ]

    @check(
        points=4, title="backward as in one process, and one all-reduce each way is enough for it"
    )
    def test_gradients(self, submission):
        for ranks in (2, 3):
            made = cases(MLP, ranks)
            results = blocks(submission, made, ranks)
            right_gradients(results, made, whole_mlp)
            with expect.though("every gradient is right"):
                block_messages(results, made, "the MLP")

    @check(points=4, title="one all-reduce of B·T·D forward, one backward")
    def test_messages(self, submission):
        made = cases(MLP, 2)
        block_messages(blocks(submission, made, 2), made, "the MLP")


ORDER = "the features were split as (c h): heads stand one after the other, (h c)"


class TestParallelAttention(Exercise):
    """A rank's own heads"""

    name = "parallel_attention"
    reference = "minitrain.parallel.tensor.plain:parallel_attention"
    hidden = HIDDEN

    @check(points=2, title="the output equals one process (2 and 3 ranks, several shapes)")
    def test_output(self, submission):
        for ranks in (2, 3):
            made = cases(ATTENTION, ranks)
            results = blocks(submission, made, ranks, watched=True)
            for number, one in enumerate(made):
                want, _ = one_process(whole_attention, one)
                hints = self.mistakes(one, ranks)
                for rank, result in enumerate(results):
                    what = f"rank {rank} of {ranks}, the output"
                    expect.equal(result[number]["y"], want, what=what, hints=hints)
        right_on_split_tokens(submission, ATTENTION, whole_attention)

    @staticmethod
    def mistakes(one, ranks):
        """Likely wrong outputs, in words."""
        found, x, size = [], one["x"], one["head_size"]
        parts = [
            {name: sliced(name, matrix, rank, ranks) for name, matrix in one["whole"].items()}
            for rank in range(ranks)
        ]
        words = {
            "one head": "that is one head of all this rank's features: it has width / head_size heads",
            "later": "tokens read later tokens: attention is causal (is_causal=True)",
            "order": ORDER,
            "order, joined alike": ORDER,
            "all heads": "that is with the heads of all ranks: this rank has D/N numbers, `w.head_size` for each head, and so "
            "H/N heads",
            "layout": "heads read each other, not tokens: q, k and v are (B, heads, T, C)",
        }
        for kind, text in words.items():
            out = 0
            for w in parts:
                split = [x @ w[name].T for name in "qkv"]
                if kind == "one head":
                    q, k, v = (z[:, None] for z in split)
                elif kind.startswith("order"):
                    q, k, v = (z.unflatten(-1, (size, -1)).permute(0, 3, 1, 2) for z in split)
                elif kind == "layout":
                    q, k, v = (z.unflatten(-1, (-1, size)) for z in split)
                elif kind == "all heads":
                    heads = x.shape[-1] // size
                    if split[0].shape[-1] % heads:
                        break
                    q, k, v = (z.unflatten(-1, (heads, -1)).transpose(1, 2) for z in split)
                else:
                    q, k, v = (z.unflatten(-1, (-1, size)).transpose(1, 2) for z in split)
                read = F.scaled_dot_product_attention(q, k, v, is_causal=kind != "later")
                dims = {"order, joined alike": (0, 2, 3, 1), "layout": (0, 1, 2, 3)}
                joined = read.permute(dims.get(kind, (0, 2, 1, 3))).flatten(2)
                out = out + joined @ w["o"].T
            else:
                found.append((out, text))
        for w in parts:
            words = "that is this rank's heads alone: they leave through `leave`, which sums"
            found.append((whole_attention(x, w, size), words))
        return found

    @check(
        points=3, title="backward as in one process, and one all-reduce each way is enough for it"
    )
    def test_gradients(self, submission):
        made = cases(ATTENTION, 3)
        results = blocks(submission, made, 3)
        right_gradients(results, made, whole_attention)
        with expect.though("every gradient is right"):
            block_messages(results, made, "attention")

    @check(points=3, title="one all-reduce of B·T·D forward, one backward")
    def test_messages(self, submission):
        made = cases(ATTENTION, 2)
        block_messages(blocks(submission, made, 2), made, "attention")


class TestSequenceMLP(Exercise):
    """The stream split too"""

    name = "sequence_mlp"
    reference = "minitrain.parallel.tensor.plain:sequence_mlp"
    hidden = HIDDEN

    NAMES = ("norm", *MLP)

    @classmethod
    def cases(cls, ranks):
        """Other shapes, one token a rank, a dtype; and a stream so small that the norm's 1e-6 counts."""
        made = [
            case(cls.NAMES, is_split=True),
            case(cls.NAMES, batch=1, length=ranks, width=24, features=6, is_split=True),
            case(cls.NAMES, batch=2, length=2 * ranks, dtype=torch.float32, is_split=True),
            case(cls.NAMES, batch=2, is_split=True),
        ]
        made[-1]["x"] *= 1e-3
        return made

    @staticmethod
    def launched(submission, made, ranks, watched=False):
        return launched(submission, probes.split_blocks, made, ranks, lambda one: (), watched)

    @check(points=4, title="each rank's tokens equal one process's (2 and 3 ranks, several shapes)")
    def test_output(self, submission):
        for ranks in (2, 3):
            made = self.cases(ranks)
            results = self.launched(submission, made, ranks, watched=True)
            for number, one in enumerate(made):
                want, _ = one_process(whole_sequence_mlp, one)
                for rank, result in enumerate(results):
                    expect.equal(
                        result[number]["y"],
                        tokens_of(want, rank, ranks),
                        what=f"rank {rank} of {ranks}, the output",
                        hints=self.mistakes(one, want, rank, ranks),
                    )

    @staticmethod
    def mistakes(one, want, rank, ranks):
        """Likely wrong outputs, in words."""
        bias = one["whole"]["bias"]
        mine, own = (tokens_of(whole, rank, ranks) for whole in (want, one["x"]))
        return [
            (want, "that is all tokens: end with `tp.reduce_scatter`, which keeps T/N"),
            (mine - own, "the stream itself is missing: the MLP is added to x"),
            (
                mine + (ranks - 1) * bias,
                f"the bias is in it {ranks} times: add it after the reduce-scatter",
            ),
            (mine - bias, "the bias is missing"),
        ]

    @check(
        points=4,
        title="backward as in one process, of norm and bias too; one gather and scatter each way for it",
    )
    def test_gradients(self, submission):
        for ranks in (2, 3):
            made = self.cases(ranks)
            results = self.launched(submission, made, ranks)
            for number, one in enumerate(made):
                _, want = one_process(whole_sequence_mlp, one)
                found = [result[number] for result in results]
                self.equal_in_x(found, want.pop("x"))
                equal_gradients(found, want)
            with expect.though("every gradient is right"):
                self.few_messages(results, made)
                self.little_kept(results)

    @staticmethod
    def equal_in_x(found, dx):
        for rank, got in enumerate(found):
            expect.that(
                got["gradients"]["x"] is not None,
                f"rank {rank}: no gradient reached x; the output must have x's shape, T/N tokens",
            )
            what = f"rank {rank} of {len(found)}, gradient of x"
            expect.equal(got["gradients"]["x"], tokens_of(dx, rank, len(found)), what=what)

    @check(
        points=4,
        title="one all-gather and one reduce-scatter each way; one tensor of all tokens is kept",
    )
    def test_messages(self, submission):
        made = self.cases(2)
        results = self.launched(submission, made, 2)
        self.few_messages(results, made)
        self.little_kept(results)

    @staticmethod
    def few_messages(results, made):
        for number, one in enumerate(made):
            payload, small = one["x"].nbytes, 2 * one["whole"]["norm"].nbytes
            for rank, result in enumerate(results):
                for way in ("forward", "backward"):
                    found = list(result[number][way])
                    sums = [op for op in found if op[0] == "all_reduce" and op[1] <= small]
                    ops = [op for op in found if op not in sums]
                    kinds = sorted(kind for kind, _ in ops)
                    expect.that(
                        kinds == ["all_gather", "reduce_scatter"]
                        and all(n == payload for _, n in ops),
                        f"rank {rank}, {way}: {messages(ops)}; expected one all-gather and one "
                        f"reduce-scatter of {payload} bytes, B·T·D. Gather the norm's output once, "
                        "for gate and up; an all-reduce sends as much and leaves every rank all tokens",
                    )
                    sent = sum(nbytes for _, nbytes in sums)
                    expect.that(
                        sent <= (small if way == "backward" else 0),
                        f"rank {rank}, {way}: {sent} bytes beside those; norm and bias have "
                        f"{small}, and only their gradients are summed",
                    )

    @staticmethod
    def little_kept(results):
        for rank, result in enumerate(results):
            kept = result[0]["whole_kept"]
            expect.that(
                kept <= 1,
                f"rank {rank} keeps {kept} tensors of all B·T·D for backward, one is "
                "enough: normalise this rank's tokens first, then gather",
            )


class TestEmbed(Exercise):
    """V/N rows of the embedding"""

    name = "embed"
    reference = "minitrain.parallel.tensor.plain:embed"
    hidden = HIDDEN

    @staticmethod
    def cases(ranks):
        """(tokens, weight, dy): every token of the vocabulary; one row a rank; a single token, so
        that the other ranks have none; float32."""
        made = []
        for rows, length, width, dtype in (
            (5, 9, 4, torch.float64),
            (1, 4, 3, torch.float64),
            (7, 1, 4, torch.float64),
            (4, 3, 6, torch.float32),
        ):
            words = ranks * rows
            tokens = torch.randint(words, (3, length))
            if length == 9:
                tokens = torch.randperm(3 * words).view(3, -1) % words
            if length == 1:
                tokens = tokens[:1]
            whole = torch.randn(words, width, dtype=dtype)
            made.append((tokens, whole, torch.randn(*tokens.shape, width, dtype=dtype)))
        return made

    @staticmethod
    def launched(submission, made, ranks, watched=()):
        """results[rank][case]."""
        calls = [
            [
                (tokens, whole.chunk(ranks)[rank].clone().requires_grad_(), dy)
                for tokens, whole, dy in made
            ]
            for rank in range(ranks)
        ]
        return in_turn(submission, probes.look_ups, calls, watched)

    @check(points=2, title="every rank has every token's row (2 and 3 ranks, several shapes)")
    def test_rows(self, submission):
        for ranks in (2, 3):
            made = self.cases(ranks)
            results = self.launched(submission, made, ranks, ["tokens", "weight", "dy"])
            for number, (tokens, whole, _) in enumerate(made):
                for rank, result in enumerate(results):
                    expect.equal(
                        result[number]["y"],
                        F.embedding(tokens, whole),
                        what=f"rank {rank} of {ranks}, the rows",
                        hints=self.mistakes(tokens, whole, rank, ranks),
                    )

    @staticmethod
    def mistakes(tokens, whole, rank, ranks):
        """Rows when a rank adds some that are not its own, or leaves some out, or nothing is summed."""
        rows = len(whole) // ranks
        place = tokens - rank * rows
        part = whole.chunk(ranks)[rank][place.clamp(0, rows - 1)]
        is_last = (tokens % rows == rows - 1)[..., None]
        added = [
            (sum(read(whole, r) for r in range(ranks)), words)
            for read, words in TestEmbed.readings(tokens, ranks)
        ]
        return [
            *added,
            (
                part * ((place >= 0) & (place < rows))[..., None],
                "that is this rank's part: `tp.reduce` adds up the ranks'",
            ),
            (
                F.embedding(tokens, whole).masked_fill(is_last, 0),
                "the last row of each rank is missing: elsewhere is len(weight) and more",
            ),
        ]

    @staticmethod
    def readings(tokens, ranks):
        """(read(whole, rank), words): what a rank adds that looks up words of others as well."""

        def reading(is_clamped, is_masked):
            def read(whole, rank):
                rows = len(whole) // ranks
                places = tokens - rank * rows
                known = (places >= 0) & (places < rows)
                at = places.clamp(0, rows - 1) if is_clamped else places.where(known, 0)
                kept = (places >= 0) & (places <= rows) if is_masked else torch.ones_like(known)
                return whole.chunk(ranks)[rank][at] * kept[..., None]

            return read

        one_more = (
            "wrong are just the words at a multiple of V/N: the rank before added a row for them, too. Its rows end before "
            "(r+1)·V/N"
        )
        added = "a rank without the token's row added another one's: it adds zeros"
        return [
            *((reading(is_clamped, True), one_more) for is_clamped in (True, False)),
            *((reading(is_clamped, False), added) for is_clamped in (True, False)),
        ]

    @check(points=3, title="backward reaches each rank's rows, no other, and sends nothing for it")
    def test_gradients(self, submission):
        made = self.cases(3)
        results = self.launched(submission, made, 3)
        for number, (tokens, whole, dy) in enumerate(made):
            leaf = whole.clone().requires_grad_()
            F.embedding(tokens, leaf).backward(dy)
            for rank, result in enumerate(results):
                got, mine = result[number]["dw"], leaf.grad.chunk(3)[rank]
                expect.that(
                    got is not None, f"rank {rank}: no gradient reached the embedding's rows"
                )
                hints = [
                    (mine * 3, "that is 3 times too large: reduce hands the gradient on, once")
                ]
                for read, words in self.readings(tokens, 3):
                    (wrong,) = torch.autograd.grad(read(leaf, rank), leaf, dy)
                    hints.append((wrong.chunk(3)[rank], words))
                expect.equal(got, mine, what=f"rank {rank}, gradient of its rows", hints=hints)
        with expect.though("every gradient is right"):
            self.one_message(results, made)

    @check(points=3, title="one all-reduce of B·T·D, whatever the vocabulary")
    def test_messages(self, submission):
        made = self.cases(2)
        self.one_message(self.launched(submission, made, 2), made)

    @staticmethod
    def one_message(results, made):
        for number, (_, whole, dy) in enumerate(made):
            for rank, result in enumerate(results):
                forward, backward = result[number]["forward"], result[number]["backward"]
                expect.that(
                    forward == [("all_reduce", dy.nbytes)] and not backward,
                    f"rank {rank} sent {messages(forward)} forward and {messages(backward)} "
                    f"backward, expected one all-reduce of {dy.nbytes} bytes, B·T·D: the matrix stays "
                    f"where it is ({whole.nbytes} bytes), and the gradient of a sum is everybody's",
                )


WIDE = 100  # columns from which on the logits are much more than a few numbers a token


class TestVocabularyLoss(Exercise):
    """Cross-entropy without the whole logits"""

    name = "vocabulary_loss"
    reference = "minitrain.parallel.tensor.plain:vocabulary_loss"
    hidden = HIDDEN

    @staticmethod
    def cases(ranks):
        """(logits, targets): small ones and near 1000, all far below zero, one rank's far above the
        others', a single token, one column a rank, a wide vocabulary, tokens of far levels, float32."""
        made = []
        for tokens, width, scale, shift in (
            (11, 5, 1.0, 0.0),
            (11, 7, 400.0, 0.0),
            (4, 6, 1.0, -1000.0),
            (5, 3, 1.0, 300.0),
            (1, 4, 1.0, 0.0),
            (6, 1, 2.0, 0.0),
            (6, 200, 1.0, 0.0),
        ):
            logits = scale * torch.randn(tokens, ranks * width, dtype=torch.float64)
            logits += shift if shift < 0 else shift * torch.arange(ranks).repeat_interleave(width)
            made.append((logits, torch.randint(ranks * width, (tokens,))))
        levels = 1000.0 * (-1) ** torch.arange(4)  # no maximum of one token serves another
        made.append((made[2][0] + 1000 + levels[:, None], made[2][1]))
        return [*made, (made[0][0].float(), made[0][1])]

    @staticmethod
    def launched(submission, made, ranks, watched=()):
        """results[rank][case]."""
        calls = [
            [
                (logits.chunk(ranks, -1)[rank].clone().requires_grad_(), targets)
                for logits, targets in made
            ]
            for rank in range(ranks)
        ]
        return in_turn(submission, probes.losses, calls, watched)

    @check(points=3, title="the loss equals one process, also of logits near 1000")
    def test_loss(self, submission):
        for ranks in (2, 3):
            made = self.cases(ranks)
            results = self.launched(submission, made, ranks, ["logits", "targets"])
            for number, (logits, targets) in enumerate(made):
                want = F.cross_entropy(logits, targets)
                for rank, result in enumerate(results):
                    got = result[number]["loss"]
                    expect.that(
                        bool(got.isfinite().all()),
                        f"got {expect.show(got)}: exp of a large logit overflows, and all of small ones are 0: take "
                        "each token's maximum over all ranks off first",
                    )
                    hints = self.mistakes(logits, targets, ranks, rank)
                    what = f"rank {rank} of {ranks}, the loss"
                    expect.equal(got, want, what=what, hints=hints)

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
                (log_sums + logits.amax(-1) - aims).mean(),
                "it is too large by the mean of m: m was added twice, or z_t has m taken out already",
            ),
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

    @check(
        points=3, title="backward gives softmax minus one-hot, over n, from a few numbers a token"
    )
    def test_gradients(self, submission):
        made = self.cases(3)
        results = self.launched(submission, made, 3)
        for number, (logits, targets) in enumerate(made):
            leaf = logits.clone().requires_grad_()
            F.cross_entropy(leaf, targets).backward()
            softmax = logits.softmax(-1) / len(targets)
            for rank, result in enumerate(results):
                mine, soft = (whole.chunk(3, -1)[rank] for whole in (leaf.grad, softmax))
                got = result[number]["dlogits"]
                expect.that(
                    got is not None,
                    f"rank {rank}: no gradient reached the logits; group operations cut it off, "
                    "`tp.reduce` hands it on",
                )
                expect.equal(
                    got,
                    mine,
                    what=f"rank {rank}, gradient of its logits",
                    hints=[
                        (mine * 3, "that is 3 times too large: it was summed once too often"),
                        (soft, "that is the softmax: the target's logit has lost its gradient"),
                        (
                            mine - soft,
                            "that is the target's share: the log-sum has lost its gradient",
                        ),
                        (
                            self.own_maxima(logits, mine - soft, rank),
                            "the maximum is this rank's own: what is added up needs one for all ranks, `tp.max`",
                        ),
                    ],
                )
        with expect.though("every gradient is right"):
            self.few_numbers(results, made)
            self.nothing_whole(results, made)

    @staticmethod
    def own_maxima(logits, aims, rank):
        """A rank's gradient where each of 3 took its own maximum off, and added up the sums."""
        parts = [part - part.amax(-1, keepdim=True) for part in logits.chunk(3, -1)]
        total = sum(part.exp().sum(-1, keepdim=True) for part in parts)
        return parts[rank].exp() / total / len(logits) + aims

    @check(points=2, title="a few numbers a token are sent, not logits")
    def test_bytes(self, submission):
        made = self.cases(2)
        self.few_numbers(self.launched(submission, made, 2), made)

    @check(points=2, title="no tensor of n·V is ever made")
    def test_memory(self, submission):
        made = self.cases(2)
        self.nothing_whole(self.launched(submission, made, 2), made)

    @staticmethod
    def few_numbers(results, made):
        """As many for every vocabulary; backward sends nothing."""
        for number, (logits, targets) in enumerate(made):
            for rank, result in enumerate(results):
                sent = sum(nbytes for _, nbytes in result[number]["forward"])
                numbers = sent / logits.element_size() / len(targets)
                expect.that(
                    numbers <= 4 * len(results),
                    f"rank {rank} took part in messages of {numbers:.0f} numbers a token; three are "
                    "enough: the maximum, the sum of exponentials, the target's logit. The logits stay",
                )
                expect.that(
                    not result[number]["backward"],
                    f"rank {rank} sent {messages(result[number]['backward'])} in backward, expected nothing: "
                    "the gradient of a sum is everybody's already",
                )

    @staticmethod
    def nothing_whole(results, made):
        """Of a wide vocabulary, where a few numbers a token are far less."""
        for number, (logits, _) in enumerate(made):
            if logits.shape[-1] < WIDE:
                continue
            for rank, result in enumerate(results):
                largest = result[number]["largest"]
                expect.that(
                    largest < logits.numel(),
                    f"rank {rank} made a tensor of {largest} numbers: the whole logits have "
                    f"{logits.numel()}, and a rank's own are {logits.numel() // len(results)}",
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
    rests_on = ("parallel_mlp", "parallel_attention", "sequence_mlp")

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
    rests_on = ("parallel_mlp", "parallel_attention", "sequence_mlp")

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
    rests_on = ("parallel_mlp", "parallel_attention")

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
    rests_on = ("traffic",)

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
    rests_on = ("activations",)

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
    rests_on = ("degrees",)

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
