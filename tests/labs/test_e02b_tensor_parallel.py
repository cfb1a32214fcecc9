"""The checks of lab e02b: tensor parallelism, graded by what is sent and what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from types import MappingProxyType, SimpleNamespace

import torch

from minitrain.lab.grading import expect, relayed
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import Mistake, hints, variant
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


# ---- one process, and what of it each rank has ----

CUT = {"q": 0, "k": 0, "v": 0, "gate": 0, "up": 0, "o": 1, "down": 1, "weight": 0, "logits": 1}
MLP, ATTENTION = ("gate", "up", "down", "bias"), ("q", "k", "v", "o")


def same(x):
    return x


def alone(rank=0):
    """Operators that send nothing."""
    doors = dict.fromkeys(("copy", "reduce", "all_gather", "reduce_scatter"), same)
    return SimpleNamespace(rank=rank, size=1, max=torch.detach, **doors)


def layer(names, batch=3, length=6, width=12, features=18, head_size=2, dtype=torch.float64):
    """Random x, w and dy; 2 and 3 ranks must divide what is cut."""
    shapes = dict.fromkeys("qkvo", (width, width)) | {"norm": (width,), "bias": (width,)}
    shapes |= dict.fromkeys(("gate", "up"), (features, width)) | {"down": (width, features)}
    x, dy = torch.randn(2, batch, length, width, dtype=dtype)
    w = {name: torch.randn(shapes[name], dtype=dtype) for name in names}
    return {"x": x, "w": w | {"head_size": head_size}, "dy": dy}


def layers(names, ranks):
    """Other shapes, one token, a head as large as a rank's share, a dtype."""
    return [
        layer(names, length=5),
        layer(names, batch=1, length=1, head_size=12 // ranks),
        layer(names, batch=2, length=7, width=24, features=6, head_size=4),
        layer(names, length=4, dtype=torch.float32),
    ]


def sliced(name, value, rank, size, is_split):
    """A rank's slice of a matrix, or of its gradient; of what has tokens, if these are split."""
    if isinstance(value, dict):
        return {n: sliced(n, each, rank, size, is_split) for n, each in value.items()}
    dim = 1 if is_split and name in ("x", "dy") else CUT.get(name)
    return value if dim is None else value.chunk(size, dim)[rank].clone()


def leaves(value):
    """With a gradient to come, where it has one."""
    if isinstance(value, dict):
        return {name: leaves(each) for name, each in value.items()}
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.clone().requires_grad_() if is_real else value


def messages(ops):
    return ", ".join(f"{kind} of {nbytes} bytes" for kind, nbytes in ops) or "nothing"


class Cut:
    """An exercise on N ranks, whose function is given two arguments and operators.

    A case has both arguments by name, and `dy`. The reference in one process says what is right.
    """

    ways: tuple[str, ...] = ()  # the operators that it is given; none: all, as `tp`
    is_split = False  # whether x, dy and the output have T/N tokens
    adds = False  # whether the output is the sum of what the ranks' slices give
    mistakes: Sequence[Mistake] = ()
    causes: Mapping[str | tuple[str, ...], str] = MappingProxyType({})

    def launched(self, submission, cases, ranks):
        """results[rank][case], with the messages of forward and backward."""
        calls = [[self.given(one, rank, ranks) for one in cases] for rank in range(ranks)]
        with expect.because(self.causes):
            results = submission.launch(probes.steps, self.ways, calls, ranks=ranks)
        for rank, (result, given, notes) in enumerate(zip(results, calls, submission.notes)):
            where = f"rank {rank} of {ranks}"
            expect.left_alone(result, given, list(cases[0]), own=False, what=where)
            expect.that(
                all(call["out"]["as given"] for call in result),
                f"{where}: an attribute of `w` was set. It is the caller's: use names of your own",
            )
            for way in ("forward", "backward"):
                runs = relayed.runs(notes, way, len(cases), ("forward", "backward", "again"))
                for call, run in zip(result, runs):
                    ops = relayed.operations(run)
                    call["out"][way] = [(op.kind, op.payload_bytes) for op in ops]
        return [[call["out"] for call in result] for result in results]

    def given(self, one, rank, ranks):
        first, second, dy = sliced("", one, rank, ranks, self.is_split).values()
        return leaves(first), leaves(second), dy

    def on_one(self, f, first, second, rank=0):
        second = SimpleNamespace(**second) if isinstance(second, dict) else second
        tp = alone(rank)
        return f(first, second, *([getattr(tp, way) for way in self.ways] or [tp]))

    def one_process(self, one):
        """The output, and the gradients by name."""
        (name, first), (other, second), (_, dy) = one.items()
        first, second = leaves(first), leaves(second)
        y = self.on_one(variant(self.reference), first, second)
        named = {name: first} | (second if isinstance(second, dict) else {other: second})
        named = {n: each for n, each in named.items() if getattr(each, "requires_grad", False)}
        return y.detach(), dict(zip(named, torch.autograd.grad(y, list(named.values()), dy)))

    def outcome(self, f, one, rank, ranks):
        """A rank's output where every rank runs f."""
        if not self.adds:
            y = self.on_one(f, *list(one.values())[:2])
            return sliced("dy", y, rank, ranks, self.is_split)
        return sum(self.on_one(f, *self.given(one, r, ranks)[:2], r) for r in range(ranks)).detach()

    def hints(self, one, want, rank, ranks):
        yield from hints(
            self.reference, self.mistakes, partial(self.outcome, one=one, rank=rank, ranks=ranks)
        )

    def judge_output(self, submission, cases, ranks):
        found = self.launched(submission, cases, ranks)
        for number, (one, *results) in enumerate(zip(cases, *found), 1):
            whole, _ = self.one_process(one)
            for rank, result in enumerate(results):
                want = sliced("dy", whole, rank, ranks, self.is_split)
                told = self.hints(one, want, rank, ranks)
                what = f"call {number}, rank {rank} of {ranks}, the output"
                expect.equal(result["y"], want, what=what, hints=told)

    def judge_gradients(self, submission, cases, ranks):
        """Of two steps on the same matrices; then the messages, which must be enough for them."""
        found = self.launched(submission, cases, ranks)
        for number, (one, *results) in enumerate(zip(cases, *found), 1):
            for place, (name, whole) in enumerate(self.one_process(one)[1].items()):
                for rank, step in product(range(ranks), ("first", "second")):
                    got = [result[step][place] for result in results]
                    what = f"call {number}, rank {rank} of {ranks}, {name}'s gradient, {step} step"
                    expect.that(got[rank] is not None, f"{what}: it is None, autograd saw no use")
                    want = sliced(name, whole, rank, ranks, self.is_split)
                    told = summed_wrongly(got, whole, want, rank)
                    expect.equal(got[rank], want, what=what, hints=told)
        with expect.though("every gradient is right"):
            self.judge_messages(cases, found)
        return found

    def judge_messages(self, cases, found):
        for one, *results in zip(cases, *found):
            for rank, result in enumerate(results):
                for way in ("forward", "backward"):
                    want = self.wanted(one, way)
                    expect.that(
                        self.counted(one, way, result[way]) == want,
                        f"rank {rank} sent in {way} {messages(result[way])}, expected "
                        f"{messages(want)}: {self.reason}",
                    )

    def counted(self, one, way, ops):
        return ops


def summed_wrongly(got, whole, want, rank):
    """Hints: how a rank's gradient came to be another sum than that of the ranks' parts."""
    size = len(got)
    yield want * size, f"that is {size} times too large: it was summed once too often"
    yield want / size, f"that is the gradient over {size}: it is a sum over ranks, no average"
    if whole.shape == want.shape and expect.difference(sum(got), whole) is None:
        yield (
            got[rank],
            "that is this rank's part, and the ranks' parts add up to the gradient: what is whole "
            "and used in each rank's own way goes through `enter` or `tp.copy` first",
        )


class TestConjugates(Exercise):
    """Operators in pairs"""

    name = "conjugates"
    reference = "minitrain.parallel.tensor.linear:conjugates"
    hidden = HIDDEN

    MISTAKES = (
        (("First.apply, Second.apply", "Second.apply, First.apply"), "that is the other one of the pair: the first one's forward is `there`"),
        (("First.apply, Second.apply", "First.apply, First.apply"), "that is the first one again: the second one's forward is `back`"),
        (("return back(dy.clone())", "return there(dy.clone())"), "the first one's backward is `back`"),
        (("return there(dy.clone())", "return back(dy.clone())"), "the second one's backward is `there`"),
        (("return back(dy.clone())", "return dy.clone()"), "the first one's backward is `back`, in a torch.autograd.Function of your own"),
    )  # fmt: skip

    F64, F32 = torch.float64, torch.float32
    SHAPES = (((6, 3), F64), ((), F64), ((2, 3, 2), F32), ((6, 3), F64))

    @classmethod
    def calls(cls):
        """Of each pair both operators, of several shapes: (pair, which, x, dy)."""
        calls = []
        for which in (0, 1):
            calls += [("turn", which, *torch.randn(2, *s, dtype=t)) for s, t in cls.SHAPES]
            long, short = torch.randn(4, 3), torch.randn(2, 3)
            calls.append(("fold", which, *((long, short) if which == 0 else (short, long))))
        return calls

    def launched(self, submission):
        """Of each call: where, what was given, what came of it, what was called in each way."""
        calls = [self.calls() for _ in range(2)]
        mixed = "these are several pairs at once: each needs its own `there` and `back`"
        with expect.because({"chunk expects": mixed}):
            results = submission.launch(probes.pairs, calls, ranks=2)
        for rank, (result, notes) in enumerate(zip(results, submission.notes)):
            ways = ("forward", "backward", "inference")
            runs = zip(*(relayed.runs(notes, way, len(result), ways) for way in ways))
            for call, got, own in zip(calls[rank], result, runs):
                where = f"rank {rank}, the {('first', 'second')[call[1]]} operator of '{call[0]}'"
                yield where, call, got, [relayed.labels(run) for run in own]

    @check(points=4, title="values and gradients of both operators, of several pairs at once")
    def test_values(self, submission):
        for where, call, got, _ in self.launched(submission):

            def applied(f, key, call=call):
                group = SimpleNamespace(rank=0, trace=SimpleNamespace(mark=lambda label: None))
                return probes.pairs(group, f, [[call]])[0][key]

            for key, way in (("out", "forward"), ("dx", "backward")):
                told = hints(self.reference, self.MISTAKES, partial(applied, key=key))
                want = applied(variant(self.reference), key)
                expect.that(got[key] is not None, f"{where}: no gradient came back through it")
                expect.equal(got[key], want, what=f"{where}, {way}", hints=told)

    @check(points=3, title="neither x nor the gradient that comes back is overwritten")
    def test_unchanged(self, submission):
        for where, (_, _, x, dy), got, _ in self.launched(submission):
            for key, before in (("x", x), ("plain", x), ("dy", dy), ("y", got["out"])):
                expect.that(
                    torch.equal(got[key], before),
                    f"{where}: {OVERWRITTEN[key]}. `there` and `back` may work in place, as an "
                    "all-reduce does: hand them x.clone(), dy.clone(), also where x needs no gradient",
                )

    @check(points=3, title="`there` one way, `back` the other, once each and nothing more")
    def test_messages(self, submission):
        for where, (_, which, *_), _, called in self.launched(submission):
            want = [["there"], ["back"]] if which == 0 else [["back"], ["there"]]
            expect.that(
                called == [*want, want[0]],
                f"{where}: forward called {called[0]}, backward {called[1]}, and forward without a "
                f"gradient {called[2]}, expected {want[0]}, {want[1]} and {want[0]}: each is a message",
            )


OVERWRITTEN = {
    "x": "it wrote over its argument",
    "plain": "it wrote over its argument where that needs no gradient",
    "dy": "its backward wrote over the gradient it was given, which another branch may still need",
    "y": "what it had returned was changed by a later call or backward",
}


class Block(Cut):
    """A block of a layer, between two doors."""

    ways = ("copy", "reduce")
    adds = True
    names: Sequence[str] = ()
    reason = "x enters once, the output leaves once, and nothing else is sent"

    def wanted(self, one, way):
        return [("all_reduce", one["x"].nbytes)]

    def hints(self, one, want, rank, ranks):
        yield from super().hints(one, want, rank, ranks)
        part = self.on_one(variant(self.reference), *self.given(one, rank, ranks)[:2]).detach()
        yield part, "that is this rank's part: it leaves through `leave`, which sums"

    def judge_on_split_tokens(self, submission):
        split = type(self)()
        split.ways, split.is_split, split.adds = ("all_gather", "reduce_scatter"), True, False
        split.causes = {"": "x has T/N tokens before `enter` here: read every shape after it"}
        cases = [layer(self.names), layer(self.names, length=2)]
        with expect.though("with `tp.copy` and `tp.reduce` it is right"):
            split.judge_output(submission, cases, 2)


class TestParallelMLP(Block, Exercise):
    """Column, then row"""

    name = "parallel_mlp"
    reference = "minitrain.parallel.tensor.layers:parallel_mlp"
    hidden = HIDDEN
    names = MLP

    SWIGLU = "swiglu(x @ w.gate.T, x @ w.up.T)"
    mistakes = (
        ((SWIGLU, "swiglu(x @ w.up.T, x @ w.gate.T)"), "silu is of gate, not of up"),
        ((SWIGLU, "F.gelu(x @ w.gate.T) * (x @ w.up.T)"), "that is with gelu: this layer has silu"),
        ((SWIGLU, "F.silu(x @ w.gate.T)"), "that is without up: silu(gate) * up"),
    )  # fmt: skip

    def outcome(self, f, one, rank, ranks):
        extra = (ranks - 1) * one["w"]["bias"] if self.adds else 0
        return super().outcome(f, one, rank, ranks) - extra

    def hints(self, one, want, rank, ranks):
        again = (ranks - 1) * one["w"]["bias"]
        yield want + again, f"the bias is in it {ranks} times, once a rank: add it after the sum"
        yield from super().hints(one, want, rank, ranks)

    @check(points=4, title="the output equals one process (2 and 3 ranks, several shapes)")
    def test_output(self, submission):
        for ranks in (2, 3):
            self.judge_output(submission, layers(MLP, ranks), ranks)
        self.judge_on_split_tokens(submission)

    @check(
        points=4, title="backward as in one process, and one all-reduce each way is enough for it"
    )
    def test_gradients(self, submission):
        for ranks in (2, 3):
            self.judge_gradients(submission, layers(MLP, ranks), ranks)

    @check(points=4, title="one all-reduce of B·T·D forward, one backward")
    def test_messages(self, submission):
        cases = layers(MLP, 2)
        self.judge_messages(cases, self.launched(submission, cases, 2))


class TestParallelAttention(Block, Exercise):
    """A rank's own heads"""

    name = "parallel_attention"
    reference = "minitrain.parallel.tensor.layers:parallel_attention"
    hidden = HIDDEN
    names = ATTENTION

    INTO, BACK = '"b t (h c) -> b h t c"', '"b h t c -> b t (h c)"'
    ORDER = "features were read as (c h): heads stand one after the other, (h c), where they are split and where they are joined"
    mistakes = (
        ((INTO, '"b t (c h) -> b h t c"', BACK, '"b h t c -> b t (c h)"'), ORDER),
        ((INTO, '"b t (h c) -> b t h c"', BACK, '"b t h c -> b t (h c)"'),
         "heads read each other, not tokens: q, k and v are (B, heads, T, C)"),
        ((f"rearrange(out, {BACK})", "out.reshape(*x.shape[:2], -1)"),
         "the heads' output was reshaped as it lies: heads and tokens change places first"),
        (("c=w.head_size", "h=1"), "that is one head of all this rank's features: it has D/N / `w.head_size` heads"),
        ((", is_causal=True", ""), "tokens read later tokens: attention is causal (is_causal=True)"),
    )  # fmt: skip

    @check(points=2, title="the output equals one process (2 and 3 ranks, several shapes)")
    def test_output(self, submission):
        for ranks in (2, 3):
            self.judge_output(submission, layers(ATTENTION, ranks), ranks)
        self.judge_on_split_tokens(submission)

    @check(
        points=3, title="backward as in one process, and one all-reduce each way is enough for it"
    )
    def test_gradients(self, submission):
        cases = [one for one in layers(ATTENTION, 3) if one["x"].shape[1] > 1]
        self.judge_gradients(submission, cases, 3)  # of one token only rounding reaches q and k

    @check(points=3, title="one all-reduce of B·T·D forward, one backward")
    def test_messages(self, submission):
        cases = layers(ATTENTION, 2)
        self.judge_messages(cases, self.launched(submission, cases, 2))


class TestSequenceMLP(Cut, Exercise):
    """The stream split too"""

    name = "sequence_mlp"
    reference = "minitrain.parallel.tensor.layers:sequence_mlp"
    hidden = HIDDEN
    is_split = True
    reason = "one of the norm's output and one of what the MLP makes of it, of all tokens (B·T·D)"

    mistakes = (
        (("1e-6", "1e-5"), "the norm's epsilon is 1e-5: `rms_norm(x, weight, 1e-6)`"),
        (("return x + ", "return "), "the stream itself is missing: the MLP is added to x"),
        (("return x + ", "return n + "), "the MLP was added to x's norm: it is added to x itself"),
        (("rms_norm(x, tp.copy(w.norm), 1e-6)", "x"), "x was not normalised: the MLP reads x's norm"),
        (("+ tp.copy(w.bias)", "+ 2 * w.bias"), "the bias is in it twice: `parallel_mlp` adds it, too"),
    )  # fmt: skip

    @staticmethod
    def cases(ranks):
        """Also one token a rank, and a stream so small that the norm's 1e-6 counts."""
        names = ("norm", *MLP)
        small = layer(names, batch=2)
        small["x"] *= 1e-3
        return [
            layer(names),
            layer(names, batch=1, length=ranks, width=24, features=6),
            layer(names, batch=2, length=2 * ranks, dtype=torch.float32),
            small,
        ]

    def hints(self, one, want, rank, ranks):
        again = (ranks - 1) * one["w"]["bias"]
        yield want + again, f"the bias is in it {ranks} times: add it after the reduce-scatter"
        yield from super().hints(one, want, rank, ranks)

    @check(points=4, title="each rank's tokens equal one process's (2 and 3 ranks, several shapes)")
    def test_output(self, submission):
        for ranks in (3, 2):  # on 2, what is there once a rank and what is there twice are the same
            self.judge_output(submission, self.cases(ranks), ranks)

    @check(
        points=4,
        title="backward as in one process, of norm and bias too; one gather and scatter each way for it",
    )
    def test_gradients(self, submission):
        for ranks in (2, 3):
            found = self.judge_gradients(submission, self.cases(ranks), ranks)
            with expect.though("every gradient is right"):
                self.little_kept(found)

    @check(
        points=4,
        title="one all-gather and one reduce-scatter each way; one tensor of all tokens is kept",
    )
    def test_messages(self, submission):
        cases = self.cases(2)
        found = self.launched(submission, cases, 2)
        self.judge_messages(cases, found)
        self.little_kept(found)

    def wanted(self, one, way):
        return [("all_gather", one["x"].nbytes), ("reduce_scatter", one["x"].nbytes)]

    def counted(self, one, way, ops):
        """Without the sums of norm's and bias's gradients, if they are of no more than these."""
        small = 2 * one["w"]["norm"].nbytes if way == "backward" else 0
        sums = [op for op in ops if op[0] == "all_reduce"]
        fits = sum(nbytes for _, nbytes in sums) <= small
        return sorted(op for op in ops if not (fits and op in sums))

    @staticmethod
    def little_kept(found):
        for rank, result in enumerate(found):
            kept = max(call["kept"] for call in result)
            expect.that(
                kept <= 1,
                f"rank {rank} keeps {kept} tensors of all B·T·D for backward, one is enough: "
                "normalise this rank's tokens first, then gather",
            )


STAYED_AWAY = {
    ("is out of bounds for dimension", "index out of range in self"): "a rank's words have the "
    "places 0 to V/N - 1: for a word elsewhere take any of these, and add zeros",
    (
        "mismatch",
        "deadlock",
    ): "every rank takes part in each `tp.reduce` and `tp.max`, with numbers "
    "of all tokens: one that has none of the words, too, with zeros",
}


class TestEmbed(Cut, Exercise):
    """V/N rows of the embedding"""

    name = "embed"
    reference = "minitrain.parallel.tensor.vocabulary:embed"
    hidden = HIDDEN
    adds = True
    reason = "what is summed is rows, once, and in forward; the matrix stays where it is"
    causes = STAYED_AWAY
    mistakes = (
        (("places < 0", "places <= 0"), "the first row of each rank is missing: place 0 is its own"),
        ((">= len(weight)", ">= len(weight) - 1"), "the last row of each rank is missing"),
        (('rows.masked_fill(rearrange(elsewhere, "b t -> b t 1"), 0)', "rows"),
         "a rank without the token's row added another one's: it adds zeros"),
    )  # fmt: skip

    @staticmethod
    def cases(ranks):
        """Every token of the vocabulary; one row a rank; a single token, so that the other ranks
        have none; float32."""
        cases = []
        for rows, length, width, dtype in (
            (5, 5 * ranks, 4, torch.float64),
            (1, 4, 3, torch.float64),
            (7, 1, 4, torch.float64),
            (4, 3, 6, torch.float32),
        ):
            tokens = torch.randperm(3 * length).view(3, -1) % (rows * ranks)
            tokens = tokens[:1] if length == 1 else tokens
            whole = torch.randn(ranks * rows, width, dtype=dtype)
            dy = torch.randn(*tokens.shape, width, dtype=dtype)
            cases.append({"tokens": tokens, "weight": whole, "dy": dy})
        return cases

    def wanted(self, one, way):
        return [("all_reduce", one["dy"].nbytes)] if way == "forward" else []

    @check(points=2, title="every rank has every token's row (2 and 3 ranks, several shapes)")
    def test_rows(self, submission):
        for ranks in (2, 3):
            self.judge_output(submission, self.cases(ranks), ranks)

    @check(points=3, title="backward reaches each rank's rows, no other, and sends nothing for it")
    def test_gradients(self, submission):
        self.judge_gradients(submission, self.cases(3), 3)

    @check(points=3, title="one all-reduce of B·T·D, whatever the vocabulary")
    def test_messages(self, submission):
        cases = self.cases(2)
        self.judge_messages(cases, self.launched(submission, cases, 2))


class TestVocabularyLoss(Cut, Exercise):
    """Cross-entropy without the whole logits"""

    name = "vocabulary_loss"
    reference = "minitrain.parallel.tensor.vocabulary:vocabulary_loss"
    hidden = HIDDEN
    causes = STAYED_AWAY
    mistakes = (
        ((".mean()", ".sum()"), "that is the sum over tokens: take the mean"),
        (("top + total", "total"), "the maximum was taken off before exp: add it to the logarithm again"),
        (("(top + total", "(2 * top + total"), "m was added twice, or z_t has m taken out already"),
        ((" - aim", ""), "the target's logit is missing from it"),
        (("tp.max(logits.amax(dim=-1))", "torch.zeros_like(logits[:, 0])"),
         "exp of a large logit overflows, and all of small ones are 0: take each token's maximum over all ranks off first"),
    )  # fmt: skip

    @staticmethod
    def cases(ranks):
        """Small logits and near 1000, all far below zero, one rank's far above the others', a
        single token, one column a rank, a wide vocabulary, tokens of far levels, float32."""
        cases = []
        for tokens, width, scale, low, step in (
            (11, 5, 1.0, 0.0, 0.0),
            (11, 7, 400.0, 0.0, 0.0),
            (4, 6, 1.0, -1000.0, 0.0),
            (5, 3, 1.0, 0.0, 300.0),
            (1, 4, 1.0, 0.0, 0.0),
            (6, 1, 2.0, 0.0, 0.0),
            (6, 200, 1.0, 0.0, 0.0),
        ):
            logits = scale * torch.randn(tokens, ranks * width, dtype=torch.float64) + low
            logits += step * torch.arange(ranks).repeat_interleave(width)
            cases.append((logits, torch.randint(ranks * width, (tokens,))))
        far = 1000.0 * (-1) ** torch.arange(4)[:, None]  # no maximum of one token serves another
        cases += [(cases[2][0] + 1000 + far, cases[2][1]), (cases[0][0].float(), cases[0][1])]
        return [{"logits": z, "targets": t, "dy": z.new_ones(())} for z, t in cases]

    @check(points=3, title="the loss equals one process, also of logits near 1000")
    def test_loss(self, submission):
        for ranks in (2, 3):
            self.judge_output(submission, self.cases(ranks), ranks)

    @check(
        points=3, title="backward gives softmax minus one-hot, over n, from a few numbers a token"
    )
    def test_gradients(self, submission):
        cases = self.cases(3)
        found = self.judge_gradients(submission, cases, 3)
        with expect.though("every gradient is right"):
            self.nothing_whole(cases, found)

    @check(points=2, title="a few numbers a token are sent, not logits")
    def test_bytes(self, submission):
        cases = self.cases(2)
        self.judge_messages(cases, self.launched(submission, cases, 2))

    @check(points=2, title="no tensor of n·V is ever made")
    def test_memory(self, submission):
        cases = self.cases(2)
        self.nothing_whole(cases, self.launched(submission, cases, 2))

    def judge_messages(self, cases, found):
        for one, *results in zip(cases, *found):
            for rank, result in enumerate(results):
                sent = sum(nbytes for _, nbytes in result["forward"])
                numbers = sent / one["logits"][:, :1].nbytes
                expect.that(
                    numbers <= 4 * len(results) and not result["backward"],
                    f"rank {rank} sent {numbers:.0f} numbers a token in forward, and in backward "
                    f"{messages(result['backward'])}; three are enough, the maximum, the sum of "
                    "exponentials and the target's logit, and of sums everybody has the gradient",
                )

    @staticmethod
    def nothing_whole(cases, found):
        """Of the wide vocabulary, where a few numbers a token are far less."""
        wide = max(range(len(cases)), key=lambda number: cases[number]["logits"].numel())
        for rank, result in enumerate(found):
            whole, largest = cases[wide]["logits"].numel(), result[wide]["largest"]
            expect.that(
                largest < whole,
                f"rank {rank} made a tensor of {largest} numbers: the whole logits have {whole}, and "
                f"a rank's own {whole // len(found)}",
            )


# ---- experiments ----

VARIANTS = ("tensor", "sequence", "gathered again")
WHOLES = {"tensor": 4, "sequence": 2, "gathered again": 0}  # tensors of B·T·D kept by every rank
NETWORKS = (
    "NVLink for all 16",
    "nodes of 8, a card each",
    "nodes of 8, one card",
    "no NVLink, a card each",
)


def traffic(row):
    """Bytes a rank sends in a layer by the closed form: (forward, backward)."""
    ranks, numbers = row["ranks"], row["batch"] * row["length"] * row["width"]
    gather = ring_bytes("all_gather", 4 * numbers, ranks)
    norms = 3 * ring_bytes("all_reduce", 4 * row["width"], ranks)
    if row["variant"] == "tensor":
        return 4 * gather, 4 * gather
    again = 2 if row["variant"] == "gathered again" else 0
    return 4 * gather, (4 + again) * gather + norms


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
            got, where = (
                (row["forward_bytes"], row["backward_bytes"]),
                f"{row['variant']} on {row['ranks']} ranks",
            )
            expect.equal(got, traffic(row), what=f"{where}, bytes sent in forward and backward")

    @check(points=4, title="tensor: 2 all-reduces each way; sequence: gathers and scatters instead")
    def test_kinds(self, table):
        rows = by_variant(table)
        for way, kinds, want in (
            ("tensor", ("all_reduces",), (4,)),
            ("sequence", ("all_gathers", "reduce_scatters"), (4, 4)),
            ("gathered again", (), ()),
        ):
            row = rows[way, 4]
            what = f"{way} on 4 ranks, {' and '.join(kinds)} a layer"
            expect.equal(tuple(row[kind] for kind in kinds), want, what=what)


class TestActivations(Experiment):
    """Bytes kept for backward"""

    name = "activations"
    rests_on = ("parallel_mlp", "parallel_attention", "sequence_mlp")

    @check(points=4, title="sequence keeps less than tensor, and gathered again 1/N of one rank")
    def test_order(self, table):
        rows = by_variant(table)
        kept = {n: [rows[variant, n]["kept_bytes"] for variant in VARIANTS] for n in (1, 4)}
        expect.that(
            kept[4][0] > kept[4][1] > kept[4][2],
            f"on 4 ranks {', '.join(VARIANTS)} keep {kept[4]} bytes: each should be less than the last",
        )
        what = "what 4 ranks keep each, gathered again: a quarter of one rank's"
        expect.close(kept[4][2], kept[1][2] / 4, tol=0.02, what=what)

    @check(
        points=3, title="closed form: 4 tensors of B·T·D stay whole, of sequence 2, the rest / N"
    )
    def test_closed_form(self, table):
        rows = by_variant(table)
        for (way, ranks), row in rows.items():
            whole = WHOLES.get(way, 0) * stream_bytes(row)
            want = whole + (rows[way, 1]["kept_bytes"] - whole) / ranks
            words = f"{way} on {ranks} ranks: {whole} bytes whole, the rest cut in {ranks}"
            expect.close(row["kept_bytes"], want, tol=0.03, what=words)


class TestDegrees(Experiment):
    """Efficiency against the number of ranks"""

    name = "degrees"
    rests_on = ("parallel_mlp", "parallel_attention")

    @check(points=4, title="1 to 16 ranks; efficiency is compute over step, and falls")
    def test_rows(self, table):
        for network in {row["network"] for row in table}:
            own = sorted((r for r in table if r["network"] == network), key=lambda r: r["ranks"])
            expect.equal([row["ranks"] for row in own], [1, 2, 4, 8, 16], what=f"{network}: ranks")
            for row in own:
                want = row["compute_seconds"] / row["step_seconds"]
                what = f"{network}, {row['ranks']} ranks: compute / step"
                expect.close(row["efficiency"], want, tol=0.01, what=what)
            expect.that(
                all(a["efficiency"] > b["efficiency"] for a, b in pairwise(own)),
                f"{network}: efficiencies {[round(r['efficiency'], 3) for r in own]} should fall: "
                "the messages stay as long while the matrices shrink",
            )

    @check(
        points=5,
        title="a layer waits for four all-reduces, and a narrow way out of the node costs most",
    )
    def test_order(self, table):
        for row in table:
            waiting = row["step_seconds"] - row["compute_seconds"]
            if row["ranks"] > 1:
                what = f"{row['network']}, {row['ranks']} ranks: waiting against 4 all-reduces"
                expect.close(waiting, 4 * row["all_reduce_seconds"], tol=0.05, what=what)
        rows = expect.rows(table, "network", "ranks")
        order = [rows[network, 16]["efficiency"] for network in NETWORKS]
        expect.that(
            order[1] > 2 * order[2] and order[0] > 2 * order[3],
            f"efficiency on 16 ranks: {dict(zip(NETWORKS, order))}; one card for 8 ranks, or no NVLink "
            "at all, should cost more than a half",
        )


class TestSequenceTraffic(Question):
    """What sequence parallelism sends"""

    name = "sequence_traffic"
    rests_on = ("traffic",)

    @check(points=5, title="bytes of the sequence layer over those of the tensor layer, 4 ranks")
    def test_value(self, value, records):
        rows = by_variant(expect.recorded(records, "traffic"))
        tensor, sequence, again = (
            rows[variant, 4]["forward_bytes"] + rows[variant, 4]["backward_bytes"]
            for variant in VARIANTS
        )
        hints = [
            (again / tensor, "that is the row 'gathered again'"),
            (0.5, "a reduce-scatter sends half of an all-reduce, but an all-gather comes with it"),
            (1 / 4, "the memory of the stream shrinks to 1/N, its messages do not"),
        ]
        expect.close(value, sequence / tensor, tol=0.02, what="sequence over tensor", hints=hints)


class TestMemorySaved(Question):
    """What two more gathers buy"""

    name = "memory_saved"
    rests_on = ("activations",)

    @check(points=5, title="bytes kept on 8 ranks, by the closed form: tensor over gathered again")
    def test_value(self, value, records):
        rows = by_variant(expect.recorded(records, "activations"))
        one, again = rows["tensor", 1], rows["gathered again", 1]["kept_bytes"]
        whole = 4 * stream_bytes(one)
        four, eight = ((whole + (one["kept_bytes"] - whole) / n) / (again / n) for n in (4, 8))
        hints = [
            (1 / eight, "that is upside down: how many times as much does 'tensor' keep?"),
            (four, "that is on four ranks: eight are asked for"),
            (8.0, "the features were cut in 8 already: only what was whole shrinks by 8"),
        ]
        expect.close(value, eight, tol=0.02, what="tensor over gathered again", hints=hints)


class TestPastTheNode(Question):
    """Twice the GPUs"""

    name = "past_the_node"
    rests_on = ("degrees",)

    @check(points=5, title="how many times as fast 16 ranks are as 8, nodes of 8 with one card")
    def test_value(self, value, records):
        rows = expect.rows(expect.recorded(records, "degrees"), "network", "ranks")
        eight, sixteen = rows[NETWORKS[2], 8], rows[NETWORKS[2], 16]
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
