"""The checks of lab e02b: tensor parallelism, graded by what is sent and what is kept."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from einops import rearrange

from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.verdicts import RIGHT_ALONE, as_above, in_a_row
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
        "2(N-1)/N times S at the data sheet's 450 GB/s; measured links give less, and have a latency",
        formula=lambda nbytes, ranks: 1e3 * 2 * (ranks - 1) / ranks * nbytes / 450e9,
    ),
}
HIDDEN = tuple(
    f"minitrain/parallel/{name}.py"
    for name in (
        "collectives/differentiable",
        *("tensor/linear", "tensor/layers", "tensor/vocabulary"),
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


def normed(x, w, eps=1e-6):
    return F.rms_norm(x, x.shape[-1:], w["norm"], eps)


def whole_sequence_mlp(x, w, head_size=None):
    return x + whole_mlp(normed(x, w), w)


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
    for result, given in zip(results, calls):
        for call, arguments in zip(result, given):
            if "second" in call:
                call["out"]["second"] = call["second"]
            call["out"]["untouched"] = expect.difference(call["given"], arguments, 0.0) is None
    found = [[call["out"] for call in result] for result in results]
    for own, notes in zip(found, submission.notes):
        each_way(own, notes, sent_in)
    return found


def judged(run, made, judge, words=RIGHT_ALONE):
    """run(made), after judge(one, what each rank has of it) for each of them."""

    def verdict(made):
        results = run(made)
        for one, found in zip(made, zip(*results)):
            judge(one, found)
        return results

    return in_a_row(verdict, made, words)


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


PART = "that is this rank's part of it, and the ranks' parts add up to the gradient: "
OWN_TOKENS = PART + "what is whole and used on each rank's own tokens goes through `tp.copy`"
PARTS = {"x": PART + "let x enter first", "norm": OWN_TOKENS, "bias": OWN_TOKENS}
SHARED = {"bias": ", and each rank adds the whole bias to its own tokens"}
PAST = (
    "x is whole, and the ranks' gradients of it differ: whatever reads x reads what `enter` returned, "
    "whose backward sums"
)


def output_is(one, found, f, mistakes=lambda *case: ()):
    """Every rank's output is one process's; mistakes(one, that, rank, ranks): hints."""
    want, _ = one_process(f, one)
    ranks = len(found)
    for rank, result in enumerate(found):
        expect.that(result["untouched"], f"rank {rank} of {ranks}: an input was changed")
        mine, hints = (
            tokens_of(want, rank, ranks, one["is_split"]),
            mistakes(one, want, rank, ranks),
        )
        if not one["is_split"] and is_narrow(result["y"], mine):  # nothing here has an epsilon
            hints = [*hints, (result["y"], NARROW)]
        expect.equal(result["y"], mine, what=f"rank {rank} of {ranks}, the output", hints=hints)


NARROW = (
    "float64 is right here to the digits of float32, and no further: something on the way is computed in a narrower dtype "
    "than x has"
)


def is_narrow(got, want):
    """Right to the rounding of float32, where float64 is asked for."""
    return got.dtype == want.dtype == torch.float64 and _same(got.float(), want.float())


def backward_is(one, found, f, fault):
    """Every gradient on every rank is its slice of one process's. fault(one, result): what is wrong
    with a rank's messages, for want of a better reason."""
    if one["x"].shape[1] == 1:
        return  # with one token, nothing but rounding reaches q and k
    _, want = one_process(f, one)
    with as_above(partial(output_is, one, found, f)):
        for name, whole in want.items():
            gradient_is(one, found, name, whole, fault)
        for name, whole in want.items() if "second" in found[0] else ():
            again_is(one, found, name, whole)


def again_is(one, found, name, whole):
    """The gradients of a second step on the same matrices, where those of the first are right."""
    for rank, result in enumerate(found):
        is_split = name == "x" and one["is_split"]
        mine = (
            tokens_of(whole, rank, len(found))
            if is_split
            else sliced(name, whole, rank, len(found))
        )
        what = f"rank {rank} of {len(found)}, gradient of {name} in a second step on the same `w`"
        told = (
            "in the first step it is right: a call leaves nothing on `w` that works again in the next (a hook that is "
            "registered on a matrix stays there)"
        )
        got = result["second"][name]
        expect.equal(got, mine, what=what, hints=[(got, told)])


def gradient_is(one, found, name, whole, fault):
    size, got = len(found), [result["gradients"][name] for result in found]
    none = [rank for rank in range(size) if got[rank] is None]
    where = (
        "on every rank: either it is not used, or autograd does not see it (`detach`, `.data`, `no_grad`)"
        if len(none) == size
        else f"on rank {' and '.join(map(str, none))}, on others it is not: every rank uses {name} itself, and has its gradient"
    )
    expect.that(not none, f"the gradient of {name} is None {where}")
    is_split = name == "x" and one["is_split"]
    for rank, result in enumerate(found):
        mine = tokens_of(whole, rank, size) if is_split else sliced(name, whole, rank, size)
        known = [
            (mine * size, f"that is {size} times too large: it was summed once too often"),
            (mine / size, f"that is the gradient over {size}: it is a sum over ranks, no average{SHARED.get(name, '')}"),
        ]  # fmt: skip
        if name in PARTS and _same(sum(got), whole):
            known.append((got[rank], PARTS[name]))
        elif name == "x" and not is_split and not all(_same(other, got[0]) for other in got):
            known.append((got[rank], PAST))
        if fault(one, result):
            known.append((got[rank], fault(one, result)))
        expect.equal(
            got[rank], mine, what=f"rank {rank} of {size}, gradient of {name}", hints=known
        )


def _same(a, b):
    return a.shape == b.shape and expect.difference(a, b) is None


def messages(ops):
    return ", ".join(f"{kind} of {nbytes} bytes" for kind, nbytes in ops) or "none"


SEVERAL = (
    "each of these calls is right where it is the only one. These are several pairs at once: each needs its own "
    "`there` and `back`"
)
RESULT = "what `there` and `back` return is the result, perhaps of another shape than what they are given"
OF_PAIR = {
    "sum": "",
    "turn": ", of a second pair",
    "gather": ", of a pair that changes the shape",
    "fold": ", of a pair that changes the shape",
}


class TestConjugates(Exercise):
    """Operators in pairs"""

    name = "conjugates"
    reference = "minitrain.parallel.tensor.linear:conjugates"
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

    def launched(self, submission, calls, ranks):
        """results[rank][call], with what it called on its way."""
        results = submission.launch(probes.pairs, calls, ranks=ranks)
        for result, notes in zip(results, submission.notes):
            each_way(result, notes, relayed.labels)
        return results

    @staticmethod
    def told(call, found):
        """(what it is, the call, what came of it, rank), for every rank."""
        name, which = call[:2]
        for rank, got in enumerate(found):
            kind = "first" if which == 0 else "second"
            yield f"rank {rank} of {len(found)}, {kind} operator{OF_PAIR[name]}", got, rank

    @check(points=4, title="values and gradients of both operators, of several pairs at once")
    def test_values(self, submission):
        for ranks, names, words in ((2, ("sum",), RIGHT_ALONE), (3, self.EVERY, SEVERAL)):
            run = partial(self.launched, submission, ranks=ranks)
            with expect.because({"shape": RESULT, "size": RESULT}):
                judged(run, self.calls(ranks, names), self.right, words)

    def right(self, call, found):
        name, which, x, dy = call
        for what, got, rank in self.told(call, found):
            y, dx = self.applied(name, which, x)[rank], self.applied(name, 1 - which, dy)[rank]
            hinted = (x, dy) if name == "sum" else (x[:0], dy[:0])
            self.compare(what, got, y, dx, *hinted)

    @staticmethod
    def compare(what, got, y, dx, x, dy):
        ranks = max(len(x), 1)
        forward = [
            (
                x.sum(0),
                "that is the sum: the first one's forward is `there` (a class made in a loop reads the loop's "
                "variables when it runs: all of them the last pair)",
            ),
            (x.sum(0) / ranks, "that is the average: hand on what `back` gives"),
            *((own, "nothing was summed: the second one's forward is `back`") for own in x),
            *([(got["out"], RESULT)] if y.shape != got["out"].shape == got["x"].shape else []),
        ]
        expect.equal(got["out"], y, what=f"{what}, forward", hints=forward)
        expect.that(
            got["dx"] is not None,
            f"{what}: no gradient came back. Make a torch.autograd.Function and return its `.apply`",
        )
        unsummed = (
            "nothing was summed: the first one's backward is `back`, in a torch.autograd.Function of your own, since "
            "autograd knows nothing of ranks"
        )
        backward = [
            (dy.sum(0), "that is the sum over ranks: the second one's backward is `there`"),
            (dy.sum(0) / ranks, "that is the average: backward is the sum of what the ranks say"),
            (dx / ranks, "that is divided by the number of ranks: the operators only do `there` and `back`"),
            *((own, unsummed) for own in dy),
        ]  # fmt: skip
        expect.equal(got["dx"], dx, what=f"{what}, backward", hints=backward)

    def of_pairs(self, submission):
        calls = self.calls(2, self.ALIKE)
        for call, found in zip(calls, zip(*self.launched(submission, calls, 2))):
            for what, got, rank in self.told(call, found):
                yield what, call, got, rank

    @check(points=3, title="neither x nor the gradient that comes back is overwritten")
    def test_unchanged(self, submission):
        for what, (_, _, x, dy), got, rank in self.of_pairs(submission):
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
        for what, (_, which, _, _), got, _ in self.of_pairs(submission):
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


SWAPPED = "x was summed over ranks, and the parts were not: x goes through `enter`, the output through `leave`"


def block_fault(one, result, name):
    """What is wrong with a rank's messages; None with one all-reduce of B·T·D each way."""
    payload = one["x"].nbytes
    for way, door, what, within in (
        ("forward", "leave", "the output", "sum once, after the last matrix"),
        ("backward", "enter", "x", "x enters once, and all matrices read that one copy"),
    ):
        ops = result[way]
        if ops == [("all_reduce", payload)]:
            continue
        other = [nbytes for _, nbytes in ops if nbytes != payload]
        if not ops:
            reason = f"{what} goes through `{door}`, which sums here"
        elif other:
            reason = (
                f"one of {other[0]} bytes is of something else. Only {what} goes through `{door}`: {name} sends the "
                "stream, never its features"
            )
        else:
            reason = f"`{door}` is called once: {within}"
        return (
            f"{way}: {plural(len(ops), 'message')} ({messages(ops)}), expected one all-reduce of {payload} bytes, "
            f"B·T·D: {reason}"
        )
    return None


def no_fault(one, found, fault):
    for rank, result in enumerate(found):
        told = fault(one, result)
        expect.that(told is None, f"rank {rank}, {told}")


def right_backward(run, made, f, fault):
    """The gradients of all, then the messages of all."""
    results = judged(run, made, partial(backward_is, f=f, fault=fault))
    with expect.though("every gradient is right"):
        for one, found in zip(made, zip(*results)):
            no_fault(one, found, fault)
    return results


def right_on_split_tokens(submission, names, f):
    """The output where `enter` gathers the tokens and `leave` sums and cuts them."""
    ranks, made = 2, [case(names, is_split=True), case(names, length=2, is_split=True)]
    words = (
        "here each rank's x has T/N tokens: `enter` gathers x's tokens, `leave` sums and cuts the output's. x alone "
        "enters, the output alone leaves; read every shape after x entered"
    )
    with expect.because({"": words}):
        results = blocks(submission, made, ranks)
    for one, *found in zip(made, *results):
        want, _ = one_process(f, one)
        for rank, result in enumerate(found):
            what = (
                f"rank {rank} of {ranks}, with `tp.all_gather` and `tp.reduce_scatter`, the output"
            )
            mine = tokens_of(want, rank, ranks)
            expect.equal(result["y"], mine, what=what, hints=[(result["y"], words)])


class TestParallelMLP(Exercise):
    """Column, then row"""

    name = "parallel_mlp"
    reference = "minitrain.parallel.tensor.layers:parallel_mlp"
    hidden = HIDDEN

    fault = staticmethod(partial(block_fault, name="the MLP"))

    @check(points=4, title="the output equals one process (2 and 3 ranks, several shapes)")
    def test_output(self, submission):
        right = partial(output_is, f=whole_mlp, mistakes=self.mistakes)
        for ranks in (2, 3):
            judged(partial(blocks, submission, ranks=ranks, watched=True), cases(MLP, ranks), right)
        right_on_split_tokens(submission, MLP, whole_mlp)

    @staticmethod
    def mistakes(one, want, rank, ranks):
        """Likely wrong outputs, in words."""
        x, whole = one["x"], one["whole"]
        bias = whole["bias"]
        mine = {n: sliced(n, matrix, rank, ranks) for n, matrix in whole.items()}
        part, gate, up = whole_mlp(x, mine), x @ whole["gate"].T, x @ whole["up"].T
        leaves = "that is this rank's part: it leaves through `leave`, which sums"
        inside = {
            "silu is of gate, not of up": gate * F.silu(up),
            "that is without silu, which is of gate": gate * up,
            "that is silu of the product: silu is of gate alone": F.silu(gate * up),
            "that is with gelu: this layer has silu": F.gelu(gate) * up,
            "that is with sigmoid: silu(a) is a * sigmoid(a)": gate.sigmoid() * up,
            "that is without up: silu(gate) * up": F.silu(gate),
        }
        return [
            (want + (ranks - 1) * bias, f"the bias is in it {ranks} times, once a rank: add it after the sum"),
            (want - bias, "the bias is missing"),
            *((made @ whole["down"].T + bias, words) for words, made in inside.items()),
            (part, leaves),
            (part - bias, leaves),
            (ranks * (want - bias) + bias, f"the sum is in it {ranks} times: the part leaves once"),
            (whole_mlp(ranks * x, mine), SWAPPED),
        ]  # fmt: skip

    @check(
        points=4, title="backward as in one process, and one all-reduce each way is enough for it"
    )
    def test_gradients(self, submission):
        for ranks in (2, 3):
            run = partial(blocks, submission, ranks=ranks)
            right_backward(run, cases(MLP, ranks), whole_mlp, self.fault)

    @check(points=4, title="one all-reduce of B·T·D forward, one backward")
    def test_messages(self, submission):
        right = partial(no_fault, fault=self.fault)
        judged(partial(blocks, submission, ranks=2), cases(MLP, 2), right)


ORDER = "features were read as (c h): heads stand one after the other, (h c), where they are split and where they are joined"
INTO_HEADS, INTO = "b t (h c) -> b h t c", "b h t c -> b t (h c)"
CH, INTO_CH = "b t (c h) -> b h t c", "b h t c -> b t (c h)"
ALONE = "that is one rank's heads alone: they leave through `leave`, which sums"
HEADS = (
    "on a rank q, k and v have D/N numbers, which are H/N heads of `w.head_size` each: x has D numbers, "
    "those of all ranks' heads"
)


class TestParallelAttention(Exercise):
    """A rank's own heads"""

    name = "parallel_attention"
    reference = "minitrain.parallel.tensor.layers:parallel_attention"
    hidden = HIDDEN

    fault = staticmethod(partial(block_fault, name="attention"))

    @check(points=2, title="the output equals one process (2 and 3 ranks, several shapes)")
    def test_output(self, submission):
        right = partial(output_is, f=whole_attention, mistakes=self.mistakes)
        for ranks in (2, 3):
            run = partial(blocks, submission, ranks=ranks, watched=True)
            with self.of_heads():
                judged(run, cases(ATTENTION, ranks), right)
        right_on_split_tokens(submission, ATTENTION, whole_attention)

    @staticmethod
    def of_heads():
        return expect.because({"Shape mismatch": HEADS, "invalid for input of size": HEADS})

    @classmethod
    def mistakes(cls, one, want, rank, ranks):
        """Likely wrong outputs, in words."""
        x, size = one["x"], one["head_size"]
        parts = [{n: sliced(n, m, r, ranks) for n, m in one["whole"].items()} for r in range(ranks)]
        width, mine = x.shape[-1], len(parts[0]["q"])

        def given(**mistake):
            return sum(cls.attended(x, w, size, **mistake) for w in parts)

        scaled = "the scores are divided by the root of {}: a head has `w.head_size` numbers, and the function does it"
        joined = "the heads' output, (B, heads, T, C), was reshaped as it lies: heads and tokens change places first"
        found = [
            (
                given(split="b t c -> b 1 t c"),
                "that is one head of all this rank's features: it has D/N / `w.head_size` heads",
            ),
            (given(is_causal=False), "tokens read later tokens: attention is causal (is_causal=True)"),
            *((given(split=a, join=b), ORDER) for a, b in ((CH, INTO), (CH, INTO_CH), (INTO_HEADS, INTO_CH))),
            (
                given(split="b t (h c) -> b t h c", join="b t h c -> b t (h c)"),
                "heads read each other, not tokens: q, k and v are (B, heads, T, C)",
            ),
            (given(join=None), joined),
            (given(scale=width**-0.5), scaled.format("all D numbers of x")),
            (given(scale=mine**-0.5), scaled.format("this rank's D/N numbers")),
            (given(scale=1.0), "the scores are not divided by the root of `w.head_size`"),
            *((whole_attention(x, w, size), ALONE) for w in parts),
            (ranks * want, f"that is {ranks} times the sum: the part leaves once"),
            (whole_attention(ranks * x, parts[rank], size), SWAPPED),
        ]  # fmt: skip
        if mine % (width // size) == 0:
            found.append(
                (given(heads=width // size), f"that is with the heads of all ranks: {HEADS}")
            )
        return found

    @staticmethod
    def attended(x, w, size, split=None, join=INTO, heads=None, is_causal=True, scale=None):
        """One rank's part, with a mistake."""
        sizes = {"h": heads} if heads else {} if split and "(" not in split else {"c": size}
        q, k, v = (rearrange(x @ w[name].T, split or INTO_HEADS, **sizes) for name in "qkv")
        out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)
        out = rearrange(out, join) if join else out.reshape(*x.shape[:2], -1)
        return out @ w["o"].T

    @check(
        points=3, title="backward as in one process, and one all-reduce each way is enough for it"
    )
    def test_gradients(self, submission):
        with self.of_heads():
            run = partial(blocks, submission, ranks=3)
            right_backward(run, cases(ATTENTION, 3), whole_attention, self.fault)

    @check(points=3, title="one all-reduce of B·T·D forward, one backward")
    def test_messages(self, submission):
        right = partial(no_fault, fault=self.fault)
        judged(partial(blocks, submission, ranks=2), cases(ATTENTION, 2), right)


class TestSequenceMLP(Exercise):
    """The stream split too"""

    name = "sequence_mlp"
    reference = "minitrain.parallel.tensor.layers:sequence_mlp"
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
    def launched(submission, made, ranks, watched=False, probe=probes.split_blocks):
        return launched(submission, probe, made, ranks, lambda one: (), watched)

    @check(points=4, title="each rank's tokens equal one process's (2 and 3 ranks, several shapes)")
    def test_output(self, submission):
        right = partial(output_is, f=whole_sequence_mlp, mistakes=self.mistakes)
        for ranks in (3, 2):  # on 2, what is there once a rank and what is there twice are the same
            run = partial(self.launched, submission, ranks=ranks, watched=True)
            judged(run, self.cases(ranks), right)

    @staticmethod
    def mistakes(one, want, rank, ranks):
        """Likely wrong outputs, in words."""
        x, w = one["x"], one["whole"]
        bias, n = w["bias"], normed(x, w)
        inside = want - x - bias

        def own(whole):
            return tokens_of(whole, rank, ranks)

        others = {0.0: "far below 1e-6", 1e-5: "1e-5", 1e-8: "1e-8", 1e-12: "1e-12"}
        return [
            (want, "that is all tokens: end with `tp.reduce_scatter`, which keeps T/N"),
            (own(want - x), "the stream itself is missing: the MLP is added to x"),
            (own(want - x + n), "the MLP was added to x's norm: it is added to x itself"),
            (own(x + whole_mlp(x, w)), "x was not normalised: the MLP reads x's norm"),
            (own(want + (ranks - 1) * bias), f"the bias is in it {ranks} times: add it after the reduce-scatter"),
            (own(want - bias), "the bias is missing"),
            (own(want + bias), "the bias is in it twice: `parallel_mlp` adds it, too"),
            (own(x + ranks * inside + bias), f"the MLP is in it {ranks} times: the parts are summed once"),
            *(
                (own(x + whole_mlp(normed(x, w, eps), w)), f"the norm's epsilon is {words}: `rms_norm(x, weight, 1e-6)`")
                for eps, words in others.items()
            ),
        ]  # fmt: skip

    @check(
        points=4,
        title="backward as in one process, of norm and bias too; one gather and scatter each way for it",
    )
    def test_gradients(self, submission):
        for ranks in (2, 3):
            run = partial(self.launched, submission, ranks=ranks, probe=probes.split_steps)
            results = right_backward(run, self.cases(ranks), whole_sequence_mlp, self.fault)
            with expect.though("every gradient is right"):
                self.little_kept(results)

    @check(
        points=4,
        title="one all-gather and one reduce-scatter each way; one tensor of all tokens is kept",
    )
    def test_messages(self, submission):
        right = partial(no_fault, fault=self.fault)
        self.little_kept(judged(partial(self.launched, submission, ranks=2), self.cases(2), right))

    @staticmethod
    def fault(one, result):
        """What is wrong with a rank's messages; small ones are the gradients of norm and bias."""
        payload, small = one["x"].nbytes, 2 * one["whole"]["norm"].nbytes
        for way in ("forward", "backward"):
            sums = [op for op in result[way] if op[0] == "all_reduce" and op[1] <= small]
            ops = [op for op in result[way] if op not in sums]
            kinds, doors = (
                [kind for kind, _ in ops],
                [("all_gather", payload), ("reduce_scatter", payload)],
            )
            if sorted(ops) != doors:
                own = result["y"].nbytes
                if sorted(op for op in ops if op != ("all_reduce", own)) == doors:
                    reason = (
                        f". All-reduced is something of {own} bytes, as large as this rank's tokens are, B·T/N·D numbers: each "
                        "rank has other tokens, and of these nothing is summed (`tp.copy` is for what is whole)"
                    )
                elif "all_reduce" in kinds:
                    reason = (
                        ". An all-reduce sends as much as both, and where its result is cut, backward has this "
                        "rank's tokens alone"
                    )
                elif kinds.count("all_gather") > 1 and way == "forward":
                    reason = ". Gather the norm's output once, for gate and up"
                else:
                    reason = ": of the norm's output, and of what the block makes of it"
                return (
                    f"{way}: {messages(ops)}; expected one all-gather and one reduce-scatter of {payload} bytes, "
                    f"B·T·D{reason}"
                )
            sent = sum(nbytes for _, nbytes in sums)
            if sent > (small if way == "backward" else 0):
                return (
                    f"{way}: {sent} bytes beside the all-gather and the reduce-scatter; norm and bias have "
                    f"{small}, and only their gradients are summed"
                )
        return None

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
    reference = "minitrain.parallel.tensor.vocabulary:embed"
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
        rows = "a rank's rows have the places 0 to V/N - 1: for a word elsewhere look up any of these, and add zeros"
        calls = [
            [
                (tokens, whole.chunk(ranks)[rank].clone().requires_grad_(), dy)
                for tokens, whole, dy in made
            ]
            for rank in range(ranks)
        ]
        all_take_part = (
            "every rank calls `tp.reduce` once in a call, with (B, T, D) numbers: a rank that has none of the tokens' rows, "
            "too, with zeros"
        )
        with expect.because({INDEX: rows, ("mismatch", "deadlock"): all_take_part}):
            return in_turn(submission, probes.look_ups, calls, watched)

    @check(points=2, title="every rank has every token's row (2 and 3 ranks, several shapes)")
    def test_rows(self, submission):
        for ranks in (2, 3):
            names = ["tokens", "weight", "dy"]
            run = partial(self.launched, submission, ranks=ranks, watched=names)
            judged(run, self.cases(ranks), self.rows_are)

    @classmethod
    def rows_are(cls, one, found):
        tokens, whole, _ = one
        for rank, result in enumerate(found):
            expect.equal(
                result["y"],
                F.embedding(tokens, whole),
                what=f"rank {rank} of {len(found)}, the rows",
                hints=cls.mistakes(tokens, whole, rank, len(found)),
            )

    @classmethod
    def mistakes(cls, tokens, whole, rank, ranks):
        """Rows when a rank adds some that are not its own, or leaves some out, or nothing is summed."""
        rows, want = len(whole) // ranks, F.embedding(tokens, whole)
        is_own = (tokens // rows == rank)[..., None]
        first, last = ((tokens % rows == place)[..., None] for place in (0, rows - 1))
        return [
            *(
                (sum(read(whole, r) for r in range(ranks)), words)
                for read, words in cls.readings(tokens, ranks)
            ),
            (want * is_own, "that is this rank's part: `tp.reduce` adds up the ranks'"),
            (
                want.masked_fill(last, 0),
                "the last row of each rank is missing: elsewhere is len(weight) and more",
            ),
            (
                want.masked_fill(first, 0),
                "the first row of each rank is missing: place 0 is its own, elsewhere is below 0",
            ),
            (
                ranks * want,
                f"that is {ranks} times the rows: a row comes from the rank that has it, and is summed once",
            ),
        ]

    @staticmethod
    def readings(tokens, ranks):
        """(read(whole, rank), words): what a rank adds that looks up words of others as well."""
        one_more = (
            "wrong are just the words at a multiple of V/N: the rank before added a row for them, too. Its rows end before "
            "(r+1)·V/N"
        )
        negative = (
            "a rank added one of its rows for words of the ranks before it, whose places are below 0: those are elsewhere, "
            "too, and get zeros"
        )
        added = "a rank without the token's row added another one's: it adds zeros"
        kept = {
            one_more: lambda places, rows: (places >= 0) & (places <= rows),
            added: lambda places, rows: torch.ones_like(places),
            negative: lambda places, rows: places < rows,
        }

        def reading(kind, words):
            def read(whole, rank):
                rows = len(whole) // ranks
                places = tokens - rank * rows
                at = (places.clamp(0, rows - 1), places * (places // rows == 0), places % rows)[
                    kind
                ]
                return whole.chunk(ranks)[rank][at] * kept[words](places, rows)[..., None]

            return read

        return [(reading(kind, words), words) for words in kept for kind in range(3)]

    @check(points=3, title="backward reaches each rank's rows, no other, and sends nothing for it")
    def test_gradients(self, submission):
        made = self.cases(3)
        results = judged(partial(self.launched, submission, ranks=3), made, self.gradients_are)
        with expect.though("every gradient is right"):
            self.one_message(results, made)

    @classmethod
    def gradients_are(cls, one, found):
        tokens, whole, dy = one
        leaf = whole.clone().requires_grad_()
        F.embedding(tokens, leaf).backward(dy)
        with as_above(lambda: cls.rows_are(one, found)):
            for rank, result in enumerate(found):
                got, mine = result["dw"], leaf.grad.chunk(3)[rank]
                expect.that(
                    got is not None,
                    f"rank {rank}: no gradient reached the embedding's rows: `tp.reduce` hands it on, "
                    "a group's own operation does not",
                )
                gathered = any(kind == "all_gather" for kind, _ in result["forward"])
                thrice = (
                    "the backward of an all-gather sums what the ranks say, and here each says the whole. The matrix "
                    "stays where it is: look a word up where its row is"
                    if gathered
                    else "reduce hands the gradient on, once"
                )
                first = mine.clone()
                first[0] = 0
                hints = []
                if result["backward"]:
                    added = (
                        "those are the gradients of all ranks' rows, added up: each rank has other rows, and of these nothing is "
                        "summed (`tp.copy` is for what is whole)"
                    )
                    hints.append((sum(leaf.grad.chunk(3)), added))
                hints += [
                    (mine * 3, f"that is 3 times too large: {thrice}"),
                    (mine / 3, "that is a third of it: nothing is divided by the number of ranks"),
                    (first, "row 0 has no gradient: it is a word's row like any (`padding_idx` takes it away)"),
                ]  # fmt: skip
                for read, _ in cls.readings(tokens, 3):
                    (wrong,) = torch.autograd.grad(read(leaf, rank), leaf, dy)
                    words = (
                        "the rows are right, but tokens that are elsewhere give their gradients to a row of this rank: set "
                        "their rows to zero where autograd sees it (`masked_fill`)"
                    )
                    hints.append((wrong.chunk(3)[rank], words))
                expect.equal(got, mine, what=f"rank {rank}, gradient of its rows", hints=hints)

    @check(points=3, title="one all-reduce of B·T·D, whatever the vocabulary")
    def test_messages(self, submission):
        made = self.cases(2)
        self.one_message(self.launched(submission, made, 2), made)

    @staticmethod
    def one_message(results, made):
        for number, (_, whole, dy) in enumerate(made):
            for rank, result in enumerate(results):
                forward, backward = result[number]["forward"], result[number]["backward"]
                is_one = forward == [("all_reduce", dy.nbytes)]
                if is_one:
                    reason = "the gradient of a sum is everybody's already"
                elif not forward:
                    reason = "`tp.reduce` adds up the ranks' rows"
                else:
                    reason = f"what is summed is rows, once; the matrix stays where it is ({whole.nbytes} bytes)"
                expect.that(
                    is_one and not backward,
                    f"rank {rank} sent {messages(forward)} forward and {messages(backward)} "
                    f"backward, expected one all-reduce of {dy.nbytes} bytes, B·T·D, in forward alone: {reason}",
                )


INDEX = ("is out of bounds for dimension", "index out of range in self")
WIDE = 100  # columns from which on the logits are much more than a few numbers a token


class TestVocabularyLoss(Exercise):
    """Cross-entropy without the whole logits"""

    name = "vocabulary_loss"
    reference = "minitrain.parallel.tensor.vocabulary:vocabulary_loss"
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
        made.insert(1, (made[2][0] + 1000 + levels[:, None], made[2][1]))
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
        columns = "a rank's columns have the places 0 to V/N - 1: for a target elsewhere pick any, and add zero"
        all_take_part = (
            "every rank takes part in each `tp.max` and `tp.reduce`, with numbers of all n tokens: a rank that has none of "
            "the targets, too, with zeros"
        )
        with expect.because({INDEX: columns, ("mismatch", "deadlock"): all_take_part}):
            return in_turn(submission, probes.losses, calls, watched)

    @check(points=3, title="the loss equals one process, also of logits near 1000")
    def test_loss(self, submission):
        for ranks in (2, 3):
            names = ["logits", "targets"]
            run = partial(self.launched, submission, ranks=ranks, watched=names)
            judged(run, self.cases(ranks), self.loss_is)

    @classmethod
    def loss_is(cls, one, found):
        want = F.cross_entropy(*one)
        for rank, result in enumerate(found):
            got, what = result["loss"], f"rank {rank} of {len(found)}, the loss"
            expect.that(
                bool(got.isfinite().all()), f"{what}: got {expect.show(got)}: {cls.not_finite(got)}"
            )
            expect.equal(got, want, what=what, hints=cls.mistakes(*one, len(found), rank))

    @staticmethod
    def not_finite(got):
        each = "take each token's own maximum over all ranks off first"
        if (got == torch.inf).any():
            return f"exp of a large logit overflows: {each}"
        if (got == -torch.inf).any():
            return f"all exps of a token are 0, and their logarithm is -inf: {each}, (n,) and not one for all tokens"
        return (
            f"inf - inf, or 0 / 0: exp of a large logit overflows, all of small ones are 0: {each}"
        )

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
        m = logits.amax(-1)
        sums = [(part - m[:, None]).exp().sum(-1) for part in parts]
        want = (log_sums - aims).mean()
        return [
            (log_sums - aims, "that is one number a token: take the mean"),
            ((log_sums - aims).sum(), "that is the sum over tokens: take the mean"),
            (ranks * want, "that is the loss once for each rank: each has the whole already"),
            (want.float(), "that is in float32: keep the logits' dtype"),
            (
                (m + sum(total.log() for total in sums) - aims).mean(),
                "the ranks' logarithms were added up: add up the exponentials, then take the logarithm",
            ),
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
        results = judged(partial(self.launched, submission, ranks=3), made, self.gradients_are)
        with expect.though("every gradient is right"):
            self.few_numbers(results, made)
            self.nothing_whole(results, made)

    @classmethod
    def gradients_are(cls, one, found):
        logits, targets = one
        leaf = logits.clone().requires_grad_()
        F.cross_entropy(leaf, targets).backward()
        softmax = logits.softmax(-1) / len(targets)
        with as_above(lambda: cls.loss_is(one, found)):
            for rank, result in enumerate(found):
                mine, soft = (whole.chunk(3, -1)[rank] for whole in (leaf.grad, softmax))
                got = result["dlogits"]
                expect.that(
                    got is not None,
                    f"rank {rank}: no gradient reached the logits; group operations cut it off, "
                    "`tp.reduce` hands it on",
                )
                thrice = (
                    "that is 3 times too large: it was summed once too often (`tp.reduce` hands a gradient on, `tp.copy` and "
                    "`tp.all_gather` sum it)"
                )
                hints = [
                    (mine * 3, thrice),
                    (
                        mine / 3,
                        "that is a third of it: each rank has the whole loss, and nothing is divided by the number of ranks",
                    ),
                    (soft, "that is the softmax: the target's logit has lost its gradient"),
                    (mine - soft, "that is the target's share: the log-sum has lost its gradient"),
                ]
                expect.equal(got, mine, what=f"rank {rank}, gradient of its logits", hints=hints)

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
    return expect.rows(table, "variant", "ranks")


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
            one = rows[variant, 1]
            want = whole + (one["kept_bytes"] - whole) / ranks
            words = f"{variant} on {ranks} ranks: {whole} bytes whole, the rest cut in {ranks}"
            expect.close(row["kept_bytes"], want, tol=0.03, what=words)


class TestDegrees(Experiment):
    """Efficiency against the number of ranks"""

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
