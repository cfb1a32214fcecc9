"""The checks of lab e06: adapters, graded by what is trained, held, and multiplied."""

from __future__ import annotations

from itertools import pairwise
from random import randint, uniform

import torch

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import hints, variant

from .probes import e06_lora as probes

LAB = "e06_lora"
SIZES = {
    "cpu": {
        "length": 64, "width": 64, "batch": 16, "pretrain": 500, "steps": 100, "sweep_steps": 40,
        "ranks": [1, 2, 4, 8, 16, 32, 64], "seeds": 3, "served": [1, 2, 4, 8, 16, 32],
        "served_width": 1024, "repeats": 7, "speech_steps": 6, "tested": 25_000,
    },
    "test": {
        "pretrain": 250, "steps": 40, "sweep_steps": 16, "ranks": [1, 4, 64],
        "served": [1, 8, 32], "served_width": 512, "repeats": 3, "speech_steps": 0, "tested": 10_000,
    },
}  # fmt: skip
REVEALS = {
    "moved": Reveal("measured", "two roundings to bfloat16 lie between W and what comes back"),
    "forgotten": Reveal("measured", "full fine-tuning, in nats a token of the old stories"),
    "whole_rank": Reveal("measured", "of what full fine-tuning closes; rank 64 is the whole width"),
}
HIDDEN = (
    "minitrain/finetuning/adapters/lora.py",
    "minitrain/finetuning/adapters/dora.py",
    "minitrain/finetuning/adapters/pissa.py",
    "minitrain/finetuning/adapters/bottleneck.py",
    "minitrain/finetuning/prompts.py",
    "minitrain/finetuning/many.py",
)
BF16 = torch.bfloat16
LIKELY = {
    "mat1 and mat2 shapes": "the shapes do not fit: A is (R, I) and reads x, B is (O, R) and writes y. "
    "`F.linear(x, A)` is x Aᵀ",
    "has no attribute 'weight'": "this layer has no `weight`: it may be quantized. The layer is called, not opened",
    "the same dtype": "this layer is bfloat16, A and B are float32: the layer is given x as it came, only what goes "
    "through A is taken to float32",
}
SEVERAL = "lengths are of the rows of V (O, I): one for each of the O outputs, in `magnitude` too"
OF_DORA = {**LIKELY, "must match the size": SEVERAL}


def drawn(rows, columns, dtype=torch.float32):
    return (torch.randn(rows, columns) / columns**0.5).to(dtype)


def case_of(ins, outs, rank, shapes, dtype=torch.float32, base="dense", bias=False, dora=False):
    """x of several shapes, (…, I). B is positive, as the probe's dy is: no gradient cancels out.

    "set" is what A and B are after a step, "then" after one more."""
    now, then = (
        {"lora_A": drawn(rank, ins), "lora_B": torch.rand(outs, rank) + 0.5}
        | ({"magnitude": torch.rand(outs) + 0.5} if dora else {})
        for _ in range(2)
    )
    return {
        "base": base,
        "weight": drawn(outs, ins, dtype),
        "bias": torch.randn(outs).to(dtype) if bias else None,
        "arguments": (rank, uniform(1.2, 3.9)),  # no power of two
        "x": [torch.randn(*shape, ins).to(dtype) for shape in shapes],
        "set": now,
        "then": then,
    }


def beside(item, submission, cases, likely=LIKELY):
    """(case, what the submission makes of it, what the reference does)"""
    with expect.because(likely):
        got = submission.run(probes.carried, cases)
    return list(zip(cases, got, probes.carried(variant(item.reference), cases)))


def are_alike(item, rows, *parts, tol=None):
    """y of every turn, in eval mode after another change of the parameters too; or its gradients."""

    def part(carried):
        return [{name: turn[name] for name in parts} for turn in carried["turns"]]

    for case, got, want in rows:
        idle = {n for t in got["turns"] for n, g in t["gradients"].items() if g is None}
        expect.that(
            "gradients" not in parts or not idle,
            f"{', '.join(sorted(idle))}: no gradient, since it was detached, copied, or used under no_grad",
        )
        is_narrow = want["turns"][0]["y"].dtype == BF16
        wrong = hints(
            item.reference, item.MISTAKES, lambda f, c=case: part(probes.carried(f, [c])[0])
        )
        what = f"x {[tuple(x.shape) for x in case['x']]}, twice, the second time in eval mode with other parameters"
        expect.equal(part(got), part(want), 0.01 if is_narrow else tol, wrong, what)


def is_fresh(got, want, *named):
    """y as without it, these parameters move in the first backward, and no layer is kept."""
    expect.identical(
        got["y"], got["plain"], what="what a fresh adapter gives, beside the bare layer"
    )
    shapes = [sorted((n, list(p.shape), str(p.dtype)) for n, p in z["named"]) for z in (got, want)]
    expect.equal(*shapes, what="the parameters of the adapter, which has no part of the layer")
    idle = sorted(set(named) - set(got["moved"]))
    expect.that(
        not idle, f"the very first backward moves {got['moved']}, and not {idle}: so it never moves"
    )


def is_thin(submission, *ways):
    """No tensor of W's size in forward, backward, or among what is saved."""
    case = case_of(300, 200, 2, [(3,)])
    largest = submission.run(probes.weighed, case)
    for way in ways:
        expect.that(
            largest[way] < 200 * 300 / 4,
            f"beside W, of 200 x 300, a tensor of {largest[way]:,} numbers in {way}: x goes through A first, then "
            "through B, R numbers a token; no product B·A takes part, and no length of rows is in the graph",
        )


def are_untouched(rows):
    for _, got, _ in rows:
        expect.that(
            got["untouched"],
            "the layer's own weights were changed, or unfrozen: only the adapter learns",
        )


def is_layer_alone(rows):
    """Called once in each forward, and nothing of it or of x is held."""
    for _, got, _ in rows:
        calls = {turn["calls"] for turn in got["turns"]}
        expect.that(
            calls == {1}, f"the layer was called {calls} times in one forward, expected once"
        )
        expect.that(
            got["held"] <= 1,  # the scaling may be a tensor
            f"beside its parameters the adapter holds {got['held']} numbers, in buffers or attributes: layer and x "
            "are given in each forward, nothing of them is kept",
        )


class TestLoRA(Exercise):
    """LoRA beside a layer"""

    name = "LoRA"
    reference = "minitrain.finetuning.adapters.lora:LoRA"
    hidden = HIDDEN
    MISTAKES = (
        (("(x, self.lora_A) * self.scaling", "(x, self.lora_A)"), "that is without the scaling: s·B(A x)"),
        (("(x, self.lora_A) * self.scaling", "(x, self.lora_A) * self.scaling / self.rank"), "the scaling is used as it is given: it is α/R already"),
        (("low_rank(x).to(y.dtype)", "low_rank(x)"), "that is float32: what is added comes back in the dtype of the layer's answer"),
        (("F.dropout(x, ", "F.dropout(x.detach(), "), "that is the layer's part alone: layers before this one need A's and B's too"),
        (("base(x, *rest, **named)", "base(x, *rest, **named).detach()"), "that is A's and B's part alone: the frozen layer passes gradients on, too"),
    )  # fmt: skip

    def rows(self, submission):
        cases = [
            case_of(7, 5, 3, [(4,), (2, 3), ()], bias=True),
            case_of(6, 11, 1, [(1, 1), (3,), (0,)]),
            case_of(12, 12, 5, [(2, 2)]),
            case_of(9, 4, 2, [(3,), (2, 2)], base="coded"),
            case_of(5, 7, 2, [(3,)], base="narrow"),
            case_of(8, 6, 4, [(5,)], dtype=BF16),
        ]
        return beside(self, submission, cases)

    def rounded(self):
        """What bfloat16 on the way loses: 1 + 2^-10 - 1 in A, in A x and in B, over a layer of zeros."""
        little, ones = 1 + 2.0**-10, torch.ones(3, 1)
        for x, a, b in (
            ([1.0, -1.0], [[little, 1.0]], ones),
            ([1.0, 0.0], [[little, 0.0], [1.0, 0.0]], ones * torch.tensor([1.0, -1.0])),
            ([1.0, 0.0], [[1.0, 0.0], [1.0, 0.0]], ones * torch.tensor([little, -1.0])),
        ):
            factors = {"lora_A": torch.tensor(a), "lora_B": b}
            yield {"weight": torch.zeros(3, 2, dtype=BF16), "arguments": (len(a), 1.0), "set": factors,
                   "x": [torch.tensor([x], dtype=BF16)], "then": factors}  # fmt: skip

    @check(points=3, title="it starts as nothing: B zero, A random, both float32")
    def test_starts(self, submission):
        for _, got, want in self.rows(submission):
            named = dict(got["named"])
            for is_right, words in (
                (any(p.any() for p in named.values()), "A and B are both zero: then neither ever has a gradient, since each one's contains the other"),
                ("lora_B" not in named or not named["lora_B"].any(), "B is not zero: A is random and B begins as zero"),
            ):  # fmt: skip
                expect.that(is_right, words)
            is_fresh(got, want, "lora_B")
        one, two = submission.run(probes.started_twice, drawn(16, 400, BF16), (8, 2.0))
        size = one.square().mean().sqrt().item() * 20
        is_random = not torch.equal(one, two) and torch.linalg.matrix_rank(one) == 8
        for is_right, words in (
            (0.3 < size < 2, f"the numbers of A are {size:.2g}/√I in size: draw them about 1/√I"),
            (is_random, "A is the same in two adapters, or in its rows: draw all of it, without a seed"),
        ):  # fmt: skip
            expect.that(is_right, words)

    @check(points=4, title="y = W x + s·B(A x), for every shape, over every kind of layer")
    def test_value(self, submission):
        rows = self.rows(submission)
        are_alike(self, rows, "y")
        for _, got, want in rows:
            expect.equal(got["delta"], want["delta"], what="delta(), s·B·A")
            expect.that(not got["delta_learns"], "delta() asks for a gradient: give it without one")
        with expect.though("y is right where x is float32"):
            for row, part in zip(beside(self, submission, list(self.rounded())), ("A", "A x", "B")):
                with expect.though(f"{part} was rounded to bfloat16 on the way: take x to float32"):
                    are_alike(self, [row], "y")
        with expect.though("y is right"):
            is_thin(submission, "forward")

    @check(points=4, title="only A and B are trained and held; x has the gradient of both ways")
    def test_gradients(self, submission):
        rows = self.rows(submission)
        are_untouched(rows)
        is_layer_alone(rows)
        are_alike(self, rows, "y", "dx", "gradients")
        is_thin(submission, "backward")

    @check(points=3, title="the layer is called once; B·A is never made")
    def test_mechanism(self, submission):
        is_layer_alone(self.rows(submission))
        is_thin(submission, "forward", "backward")


class TestMergedLinear(Exercise):
    """An adapter inside the weights"""

    name = "merged_linear"
    reference = "minitrain.finetuning.adapters.lora:merged_linear"
    hidden = HIDDEN
    MISTAKES = (
        (("weight + delta)", "weight + delta.to(weight.dtype))"), "the difference was rounded to W's dtype before it was added: add in float32, round once"),
        (("(weight + delta).to(weight.dtype)", "weight + delta"), "that is float32: the merged layer is as wide as the one it stands for"),
        (("weight + delta)", "weight - delta)"), "that is W - ΔW"),
    )  # fmt: skip

    def rows(self, submission):
        cases = [
            (
                kind,
                drawn(outs, ins, dtype),
                torch.randn(outs).to(dtype) if bias else None,
                0.05 * torch.randn(outs, ins) / ins**0.5,
            )
            for kind, ins, outs, dtype, bias in (
                ("dense", 7, 5, torch.float32, True),
                ("dense", 48, 64, BF16, True),
                ("dense", 40, 50, BF16, False),
                ("dense", 33, 20, torch.float16, False),
                ("dense", 1, 3, torch.float32, False),
                ("quantized", 6, 9, torch.float32, False),
                ("quantized", 4, 7, torch.float32, True),
            )
        ]
        with expect.because(
            {
                "'Codes' object": "a quantized layer's `weight` is no tensor: `dense_weight(base)` gives W"
            }
        ):
            found = submission.run(probes.merged_by, cases)
        for got in found:
            expect.that(
                got["type"] == "Linear", f"got {got['type']}, expected a new torch.nn.Linear"
            )
        return list(zip(cases, found, probes.merged_by(variant(self.reference), cases)))

    @check(points=3, title="W + ΔW in W's dtype, added in float32 and rounded once; base's bias")
    def test_value(self, submission):
        for case, got, want in self.rows(submission):
            wrong = hints(
                self.reference,
                self.MISTAKES,
                lambda f, c=case: probes.merged_by(f, [c])[0]["weight"],
            )
            expect.identical(got["weight"], want["weight"], wrong, "the weight")
            has, asked = got["bias"] is not None, want["bias"] is not None
            expect.that(
                has == asked,
                f"the {case[0]} layer {'has a bias' if asked else 'has no bias'}, the merged one "
                f'{"has" if has else "has none"}: `getattr(base, "bias", None)` is its bias',
            )
            for part in ("bias", "sizes", "y"):
                expect.equal(got[part], want[part], what=f"{part} of the merged layer")

    @check(points=3, title="W stays, bit for bit: the merged matrix is another one")
    def test_untouched(self, submission):
        for _, got, _ in self.rows(submission):
            for part, words in (
                ("untouched", "base itself was changed: taking ΔW away again leaves W with the roundings of both ways. Make a matrix of its own"),
                ("own", "the merged weight lies in W's memory: a change of one is a change of the other"),
                ("delta", "delta itself was changed: make the sum in a tensor of its own"),
                ("base_bias", "base's own bias was changed"),
                ("asks", "base's own parameters asked for a gradient, and now one does not: a Parameter that the merged layer shares with base is frozen in both"),
            ):  # fmt: skip
                expect.that(got[part], words)

    @check(points=2, title="it is frozen: no gradient, no graph")
    def test_frozen(self, submission):
        for _, got, _ in self.rows(submission):
            expect.that(
                not got["trained"] and not got["graph"],
                f"{', '.join(got['trained']) or 'the weight'} asks for a gradient: merged, an adapter does not learn",
            )


class TestDoRA(Exercise):
    """DoRA: length and direction apart"""

    name = "DoRA"
    reference = "minitrain.finetuning.adapters.dora:DoRA"
    hidden = HIDDEN
    MISTAKES = (
        (("dense_weight(base) + self.delta(), dim", "dense_weight(base), dim"), "that divides by the length of W's rows: take the length of V = W + s·B·A, anew in each forward"),
        (("y if bias is None else y - bias", "y"), "the bias was scaled too: only the matrix is taken apart, and the bias is added as it is"),
        (("factor = self.magnitude / self.row_lengths(base)", "factor = self.magnitude"), "that is not divided by ‖V‖: m is the whole length of a row"),
        (("(factor - 1) * straight + ", ""), "only B A x was scaled: m/‖V‖ belongs to all of V"),
        (("@torch.no_grad()\n    def row_lengths", "def row_lengths", "self.delta(), dim", "self.scaling * (self.lora_B @ self.lora_A), dim"),
         "backward went through ‖V‖: take the length under torch.no_grad(), or detach it (section 4.3 of the paper)"),
    )  # fmt: skip

    def rows(self, submission):
        cases = [
            case_of(7, 5, 3, [(4,), (2, 3)], bias=True, dora=True),
            case_of(6, 11, 1, [(1, 1), ()], dora=True),
            case_of(8, 8, 2, [(3, 2)], dora=True),
            case_of(5, 9, 2, [(3,)], base="quantized", bias=True, dora=True),
            case_of(4, 6, 2, [(2,)], base="quantized", dora=True),
        ]
        return beside(self, submission, cases, OF_DORA)

    @check(points=2, title="it starts as the layer: magnitudes are the rows' lengths")
    def test_starts(self, submission):
        for _, got, want in self.rows(submission):
            lengths = (dict(z["named"]).get("magnitude") for z in (got, want))
            expect.equal(*lengths, what="magnitude at the start, the lengths of the rows of W")
            plain = {**got, "y": got["plain"]}  # equal up to rounding
            is_fresh(plain, want, "lora_B", "magnitude")
            expect.equal(
                got["y"], got["plain"], what="what a fresh adapter gives, beside the layer"
            )

    @check(
        points=4, title="y = m·(W + s·B·A) x / ‖W + s·B·A‖, the length taken anew, bias as it is"
    )
    def test_value(self, submission):
        are_alike(self, self.rows(submission), "y")
        with expect.though("y is right"):
            is_thin(submission, "saved")

    @check(points=4, title="backward treats the length as a constant")
    def test_gradients(self, submission):
        rows = self.rows(submission)
        are_untouched(rows)
        are_alike(self, rows, "y", "dx", "gradients", tol=5e-4)
        with expect.though("the gradients are right"):
            is_thin(submission, "backward")

    @check(points=2, title="no matrix of W's size waits for backward, none is made in it")
    def test_memory(self, submission):
        is_thin(submission, "saved", "backward")


class TestHoulsby(Exercise):
    """A bottleneck after a sublayer"""

    name = "Houlsby"
    reference = "minitrain.finetuning.adapters.bottleneck:Houlsby"
    hidden = HIDDEN
    INSIDE = "F.gelu(F.linear(y.to(self.down.dtype), self.down, self.down_bias))"
    MISTAKES = (
        ((INSIDE, "F.linear(y, self.down, self.down_bias)"), "there is no bend: that is LoRA on y"),
        ((INSIDE, "F.relu(F.linear(y, self.down, self.down_bias))"), "that is relu: here it is gelu"),
        ((INSIDE, "F.linear(F.gelu(y), self.down, self.down_bias)"), "y is bent before D: the bend stands between D and U"),
        (("return y + ", "return "), "the sum with y is missing: U begins as zero, and nothing would pass"),
        (("y.to(self.down.dtype)", "y.detach()"), "that is the layer's part alone: y is detached on its way into D"),
    )  # fmt: skip
    TANH = (INSIDE, INSIDE[:-1] + ", approximate='tanh')")  # as good a gelu

    def rows(self, submission):
        cases = []
        for ins, width, narrow in ((7, 10, 3), (5, 6, 1), (9, 4, 6)):
            shapes = [(narrow, width), (width, narrow), (narrow,), (width,)]
            first, then = (
                {str(shape): torch.randn(*shape) / shape[-1] ** 0.5 for shape in shapes}
                for _ in range(2)
            )
            cases.append({
                "weight": drawn(width, ins), "bias": torch.randn(width), "arguments": (width, narrow),
                "x": [torch.randn(4, ins), torch.randn(2, 3, ins), torch.randn(ins)],
                "by_shape": True, "set": first, "then": then,
            })  # fmt: skip
        words = "D reads y, which the layer gives, of width W: D is (M, W), U is (W, M)"
        return beside(self, submission, cases, {"mat1 and mat2 shapes": words})

    @check(points=3, title="it starts as nothing, and can learn")
    def test_starts(self, submission):
        moved = set()
        for _, got, want in self.rows(submission):
            is_fresh(got, want)
            moved |= {name for name in got["moved"] if name.count(",") == 1 and name[-2] != ","}
        expect.that(
            moved,  # a bend that gives 0 may silence a narrow one
            "after the first backward neither U nor D has any gradient: only one of the two begins as zero",
        )

    @check(points=3, title="y + U·gelu(D y + d) + u: after the layer, around it a sum")
    def test_value(self, submission):
        rows = self.rows(submission)
        are_untouched(rows)
        for case, got, want in rows:
            tanh = probes.carried(variant(self.reference, *self.TANH), [case])[0]
            ours, theirs, others = ([t["y"] for t in z["turns"]] for z in (want, got, tanh))
            if expect.difference(theirs, ours, 1e-5) and not expect.difference(
                theirs, others, 1e-5
            ):
                want = tanh
            are_alike(self, [(case, got, want)], "y")
            with expect.though("y is right"):
                are_alike(self, [(case, got, want)], "dx", "gradients", tol=5e-4)


class TestPrefix(Exercise):
    """Keys and values that no token made"""

    name = "Prefix"
    reference = "minitrain.finetuning.prompts:Prefix"
    hidden = HIDDEN

    def rows(self, submission):
        """L, heads, K, C of a model; n; the MLP's width."""
        cases = [((3, 4, 2, 6), 5, 17), ((2, 2, 2, 4), 1, 23), ((4, 3, 1, 2), 3, 19)]
        with expect.because({
            "backward through the graph a second time": "what the MLP made is kept from one call to the next, graph and "
            "all: of_layer makes it anew, since the MLP learns in between"
        }):  # fmt: skip
            rows = list(zip(cases, submission.run(probes.prefixes, cases)))
        for ((layers, _, heads, size), count, _), got in rows:
            shapes = [[(tuple(z.shape), str(z.dtype)) for z in pair] for pair in got["made"]]
            each = ((heads, count, size), "torch.float32")
            expect.equal(
                shapes, [[each, each]] * layers, what="keys and values of each layer, (K, n, C)"
            )
        return rows

    @check(points=2, title="keys and values (K, n, C) for each layer, other ones in each")
    def test_shapes(self, submission):
        for ((layers, *_), count, _), got in self.rows(submission):
            every = [z for pair in (*got["made"], *got["other"]) for z in pair]
            tokens = {tuple(row) for z in every for row in z.transpose(0, 1).flatten(1).tolist()}
            expect.that(
                len(tokens) == 4 * layers * count,
                f"the keys and values of {count} tokens in {layers} layers of two prefixes have {len(tokens)} different "
                f"ones, not {4 * layers * count}: every layer has its own, and each token's vector is drawn at random",
            )
            expect.that(
                got["enabled"] is True, "`enabled` is no longer True: the switch is the attention's"
            )
            words = "keys and values while `enabled` is False, which is read by the attention alone"
            expect.equal(got["off"], got["made"], what=words)

    @check(points=4, title="one MLP of n vectors makes the keys and values of all layers")
    def test_made(self, submission):
        self.are_made(self.rows(submission))

    def are_made(self, rows):
        for (_, count, width), got in rows:
            of_token = got["sources"].any(dim=0)  # (n, N)
            own = of_token & (of_token.sum(dim=0) == 1)
            shared = got["sources"].all(dim=0) & ~(own if count > 1 else False)
            stale = [not expect.difference(*pair, 0.0) for pair in zip(got["moved"], got["made"])]
            for is_right, words in (
                (got["wider"] > got["numbers"], f"an MLP of width {width + 5} has as many trained numbers as one of {width}: until it is dropped, keys and values are made by an MLP of that width"),
                (not got["owns_model"], "the model's own parameters are the prefix's: keep model.config only"),
                (own.any(dim=1).all(), "a token's keys and values hang on no number that is its own: of each vector the MLP makes one token's. They are made in each forward, with a graph; heads come to the front by `permute`, not by `reshape`"),
                (shared.any(dim=1).all(), "the layers' keys and values are made from different numbers: the same n vectors, and one MLP, make all"),
                (got["bends"] > 1, "what is made is a straight line in the hidden layer's numbers: bend it"),
                (not any(stale), "after its numbers changed the prefix gives what it gave before: make it anew"),
            ):  # fmt: skip
                expect.that(is_right, words)

    @check(points=4, title="drop_mlp keeps what it made, n·L·2·K·C numbers, and nothing else")
    def test_dropped(self, submission):
        rows = self.rows(submission)
        self.are_made(rows)
        for ((layers, _, heads, size), count, _), got in rows:
            table = count * layers * 2 * heads * size
            expect.equal(
                got["dropped"],
                got["moved"],
                what="keys and values after drop_mlp(), as the MLP made them",
            )
            made = got["left_sources"].flatten(0, 1)
            expect.that(
                got["left"] == table
                and made.sum() == table
                and (made.sum(dim=0) == 1).all()
                and got["leaves"],
                f"after drop_mlp() {got['left']} numbers are trained, and keys and values hang on {made.sum()} (a number "
                f"counts for each layer and token): expected n·L·2·K·C = {table}, leaves, each of its own",
            )
            expect.that(
                "fails" not in got,
                f"a second drop_mlp() fails ({got.get('fails')}): it does nothing",
            )
            expect.equal(
                got["again"], got["moved"], what="keys and values after a second drop_mlp()"
            )
            words = "a second drop_mlp() puts another parameter in the place of the kept one: it does nothing"
            expect.that(got["kept"], words)


def rows_case(ranks, tokens=2, ins=6, outs=9, spare=3):
    """A batch: `ranks` a row's, 0 for no adapter; pages lie scattered, the last one is used."""
    pages = 1 + sum(ranks) + spare
    free = (1 + torch.randperm(pages - 1)).tolist()
    tables = [[free.pop() for _ in range(rank)] for rank in ranks]
    scalings = [uniform(1.2, 3.9) for _ in ranks]
    return tables, scalings, torch.randn(len(ranks), tokens, ins), *pages_of(pages, ins, outs)


def pages_of(count, ins, outs):
    a, b = torch.randn(count, ins), torch.randn(count, outs)
    a[0], b[0] = 0, 0
    return a, b


PAGES = {
    "mat1 and mat2 shapes": "a[pages] is (B, R, I) and b[pages] (B, R, O): x (B, T, I) by the first, transposed",
    "Expected size for first two dimensions": "a[pages] is (B, R, I): x (B, T, I) by it, transposed, then by the second",
    "tensors used as indices must be long": "page numbers are indices in every batch: `dtype=torch.long` makes them so "
    "in one in which no row has an adapter, too",
    "is out of bounds for dimension 0": "that is no page of the pool: a table lists each of its adapter's pages",
    "must match the size of tensor": "what is multiplied is (B, T, R): the scalings, one a row, are (B, 1, 1) beside it",
}  # fmt: skip


class TestRows(Exercise):
    """An adapter a row"""

    name = "Rows"
    reference = "minitrain.finetuning.many:Rows"
    hidden = HIDDEN
    KEPT = "a, b = a[self.pages], b[self.pages]"
    MISTAKES = (
        (("[ZERO_PAGE] *", "[-1] *"), "shorter tables were filled with page -1: that is the last page, and belongs to somebody. Page 0 holds zeros"),
        (("transpose(1, 2)) * self.scaling", "transpose(1, 2))"), "the scalings are missing: one a row"),
        (("dtype=dtype)[:, None, None]", "dtype=dtype)[:1, None, None]"), "all rows have the first one's scaling: each has its own"),
        (("[[*table, *", "[[*(range(table[0], table[0] + len(table)) if table else ()), *"), "those are the pages that follow each table's first one: its table lists each of them"),
        ((KEPT, "self.kept = getattr(self, 'kept', None) or (a[self.pages], b[self.pages])\n        a, b = self.kept"), "those are the first layer's pages: gather them in `added`, anew in each call"),
    )  # fmt: skip

    @check(
        points=3, title="each row gets its own adapter's B(A x), of any rank; none adds exactly 0"
    )
    def test_value(self, submission):
        calls = [
            rows_case([3, 0, 5, 1], tokens=4),
            rows_case([2, 2, 2], tokens=1),
            rows_case([0, 0], spare=1),
            rows_case([randint(1, 6)], tokens=3, ins=1),
            rows_case([0, 7, 0, 2, 4, 1], spare=0, outs=1),
        ]
        tables, scalings, x, a, b = calls[0]
        calls.append((tables[2:], [s + 1 for s in scalings[2:]], x[:2], a.flip(1), b + a[:, :1]))
        with expect.because(PAGES):
            found = submission.run(probes.in_rows, calls)
        for call, got in zip(calls, found["calls"]):
            what = (
                f"what is added to {len(call[0])} rows of ranks {[len(table) for table in call[0]]}"
            )
            self.is_own(
                lambda f, c=call: probes.in_rows(f, [c])["calls"][0]["out"], got["out"], what
            )
            empty = [got["out"][row] for row, table in enumerate(call[0]) if not table]
            expect.that(
                not any(z.any() for z in empty),
                "a row has no adapter, and not exactly 0 is added to it",
            )
        expect.left_alone(found["calls"], [call[2:] for call in calls], ["x", "a", "b"])
        expect.that(
            found["kept"],
            "the tables were filled up in place: they are the caller's. Make new lists",
        )

    def is_own(self, call, got, what):
        want = call(variant(self.reference))
        expect.equal(got, want, hints=hints(self.reference, self.MISTAKES, call), what=what)

    @check(points=4, title="two matmuls for the whole batch, however many adapters it has")
    def test_matmuls(self, submission):
        self.is_batched(submission)

    def is_batched(self, submission):
        cases = [rows_case(ranks) for ranks in ([4, 0, 2], [1, 2, 3, 4, 0, 5, 6, 7, 3, 2])]
        with expect.because(PAGES):
            found = submission.run(probes.effort, cases)
        for case, got, want in zip(cases, found, probes.effort(variant(self.reference), cases)):
            expect.that(
                got["flops"] <= want["flops"],
                f"`added` took {got['flops']:,} FLOPs, expected 2·B·T·R·(I + O) = {want['flops']:,}: gather the pages of "
                "each row before multiplying, as many as the longest table has",
            )
            expect.that(
                0 < got["matmuls"] <= 2,
                f"{len(case[0])} rows took {got['matmuls']} matrix products, expected 2: gather (B, R, I) and (B, R, O), "
                "then one batched product each (`torch.bmm`)",
            )

    @check(points=3, title="one batch serves every layer, each with pages of its own")
    def test_layers(self, submission):
        tables, scalings, *_ = rows_case([3, 0, 2, 1], spare=2)
        for sizes in (((8, 7), (8, 7), (8, 7)), ((4, 3), (5, 8), (1, 9))):
            layers = [(torch.randn(4, 2, ins), *pages_of(9, ins, outs)) for ins, outs in sizes]
            with expect.because(PAGES):
                found = submission.run(probes.layers_of_one_batch, tables, scalings, layers)
            self.is_own(
                lambda f, them=layers: [
                    call["out"] for call in probes.layers_of_one_batch(f, tables, scalings, them)
                ],
                [call["out"] for call in found],
                "what one batch adds in three layers",
            )
            expect.left_alone(found, layers, ["x", "a", "b"])
        self.is_batched(submission)


# --- what is recorded ---


def by_method(table):
    found = {row["method"]: row for row in table}
    for name in ("full", "LoRA", "DoRA", "Houlsby", "prefix", "IA3", "BitFit"):
        expect.that(name in found, f"there is no row of '{name}'")
    return found


def gained(row):
    return row["new_before"] - row["new_after"]


def forgotten(row):
    return row["old_after"] - row["old_before"]


class TestDrift(Experiment):
    """Merging in bfloat16, in place and beside"""

    name = "drift"
    rests_on = ("merged_linear",)

    @check(points=2, title="in place, W comes back otherwise; beside it stays, bit for bit")
    def test_order(self, table):
        expect.that(len(table) >= 3, f"{len(table)} rows: 3 or more counts of merges are asked for")
        for row in table:
            expect.that(
                row["beside_changed"] == 0 and row["in_place_changed"] > 0.02,
                f"after {row['merges']} merges {row['beside_changed']:.1%} of W has changed beside (expected none), and "
                f"{row['in_place_changed']:.1%} in place (expected more than 2%: is W bfloat16?)",
            )

    @check(points=2, title="the drift grows as the root of the number of merges")
    def test_growth(self, table):
        first, *_, last = sorted(table, key=lambda row: row["merges"])
        grown = last["in_place_drift"] / first["in_place_drift"]
        root = (last["merges"] / first["merges"]) ** 0.5
        expect.that(
            0.4 * root < grown < 2.5 * root,
            f"from {first['merges']} to {last['merges']} merges the drift grew {grown:.1f} times; roundings that know "
            f"nothing of each other give {root:.1f}",
        )


class TestStates(Experiment):
    """The optimizer state that is not there"""

    name = "states"
    rests_on = ("LoRA", "DoRA", "Houlsby", "Prefix")

    @check(points=4, title="moments are 8 bytes a trained number, gradients 4, to the byte")
    def test_bytes(self, table):
        for name, row in by_method(table).items():
            got = [row["optimizer_bytes"], row["gradient_bytes"]]
            want = [8 * row["trained"] + 4 * row["tensors"], 4 * row["trained"]]
            what = f"bytes of optimizer and gradients, {name}: two means of 4 bytes a trained number, and a count a tensor"
            expect.equal(got, want, what=what)


class TestMethods(Experiment):
    """Quality beside what is trained"""

    name = "methods"
    rests_on = ("LoRA", "DoRA", "Houlsby", "Prefix")

    @check(points=4, title="every method learns; full fine-tuning comes nearest to the floor")
    def test_learns(self, table):
        found = by_method(table)
        for name, row in found.items():
            least = max(-0.02, found["full"]["new_after"])
            expect.that(
                least <= row["new_after"] < row["new_before"],
                f"{name}: {row['new_before']:.3f} nats from the new floor before, {row['new_after']:.3f} after; expected "
                f"less than before, and no less than full fine-tuning leaves, {least:.3f}",
            )
        for name in ("LoRA", "DoRA"):
            expect.that(
                gained(found[name]) > 1.5 * gained(found["IA3"]),
                f"{name} gained {gained(found[name]):.3f} nats and IA3 {gained(found['IA3']):.3f}: expected much more",
            )

    @check(points=4, title="who learns less forgets less")
    def test_forgets(self, table):
        found = by_method(table)
        order = [(name, forgotten(found[name])) for name in ("IA3", "Houlsby", "LoRA", "full")]
        expect.that(
            all(less < more for (_, less), (_, more) in pairwise(order)),
            f"nats of the old stories that each forgot: {[(n, round(z, 3)) for n, z in order]}. In this order more is "
            "learned, and more should be forgotten",
        )


def mean(numbers):
    return sum(numbers) / len(numbers)


def by_rank(table):
    """rank -> the distances of its seeds; without what is no LoRA."""
    ranks = sorted({row["rank"] for row in table if row["way"] == "LoRA"})
    expect.that(len(ranks) >= 3, f"{len(ranks)} ranks of LoRA: 3 or more are asked for")
    return {
        rank: [r["distance"] for r in table if (r["way"], r["rank"]) == ("LoRA", rank)]
        for rank in ranks
    }


class TestRanks(Experiment):
    """What rank wins, and what it cannot win"""

    name = "ranks"
    rests_on = ("LoRA",)

    @check(points=3, title="each larger rank is nearer to the floor, with three seeds")
    def test_order(self, table):
        found = by_rank(table)
        for (rank, one), (larger, other) in pairwise(found.items()):
            expect.that(
                min(len(one), len(other)) >= 3, f"rank {rank} or {larger} has less than 3 seeds"
            )
            expect.that(
                mean(other) < mean(one) + (max(one) - min(one)),
                f"rank {larger} ends {mean(other):.3f} from the floor, rank {rank} {mean(one):.3f}: it should be nearer",
            )
        least, *_, most = found
        expect.that(
            mean(found[most]) < 0.9 * mean(found[least]),
            f"rank {most} is hardly nearer to the floor than rank {least}",
        )

    @check(points=2, title="even the whole rank of the blocks misses what lies outside of them")
    def test_missed(self, table):
        full, blocks = (
            mean([row["distance"] for row in table if row["way"] == way] or [0.0])
            for way in ("full", "blocks")
        )
        expect.that(
            full and blocks, "rows of 'full' and of 'blocks' (all their weights) are asked for"
        )
        largest = mean(list(by_rank(table).values())[-1])
        expect.that(
            full < min(blocks, largest),
            f"full fine-tuning ends {full:.3f} from the floor, all weights of the blocks {blocks:.3f}, LoRA's largest "
            f"rank {largest:.3f}: embedding and last norm should win something",
        )


class TestMixed(Experiment):
    """One batch of adapters beside a loop over them"""

    name = "mixed"
    rests_on = ("Rows",)

    @check(points=2, title="both give the same; FLOPs as the closed forms say")
    def test_same(self, table):
        for row in table:
            size, rows, ranks = row["width"], row["rows"], row["ranks"]
            expect.that(
                row["difference"] < 1e-3,
                f"{rows} rows: batch and loop differ by {row['difference']:.2g}",
            )
            got = [row["mixed_flops"], row["loop_flops"]]
            want = [2 * rows * size**2 + 4 * size * n for n in (max(ranks) * rows, sum(ranks))]
            expect.equal(got, want, what=f"FLOPs of {rows} rows, as one batch and in a loop")

    @check(points=2, title="with many rows the batch is faster than the loop")
    def test_faster(self, table):
        most = max(table, key=lambda row: row["rows"])
        expect.that(most["rows"] >= 8, "8 rows or more are asked for")
        expect.that(
            most["mixed_seconds"] < most["loop_seconds"],
            f"{most['rows']} rows took {1e3 * most['mixed_seconds']:.2f} ms in one batch and "
            f"{1e3 * most['loop_seconds']:.2f} ms in a loop, which reads W for each of them",
        )


class TestFewerBytes(Question):
    """How much optimizer state is not there"""

    name = "fewer_bytes"
    rests_on = ("states",)

    @check(points=5, title="full fine-tuning's optimizer bytes over LoRA's")
    def test_value(self, value, records):
        found = by_method(expect.recorded(records, "states"))
        full, lora = (found[name]["optimizer_bytes"] for name in ("full", "LoRA"))
        wrong = [
            (lora / full, "that is LoRA's over full's: how many times *fewer*?"),
            (1 - lora / full, "that is the share that is spared: how many times fewer?"),
        ]
        expect.close(value, full / lora, tol=0.01, what="how many times fewer", hints=wrong)


class TestEnoughRank(Question):
    """The rank that is enough"""

    name = "enough_rank"
    rests_on = ("ranks",)

    @check(points=5, title="the smallest rank within 20% of the largest one's distance")
    def test_value(self, value, records):
        found = by_rank(expect.recorded(records, "ranks"))
        best = mean(list(found.values())[-1])
        enough = [rank for rank, distances in found.items() if mean(distances) <= 1.2 * best]
        expect.close(value, min(enough), tol=1e-6, what="the rank")


class TestPrice(Question):
    """What a learned nat costs"""

    name = "price"
    rests_on = ("methods",)

    @check(
        points=5,
        title="nats of the old stories that Houlsby's adapter forgets for each nat learned",
    )
    def test_value(self, value, records):
        row = by_method(expect.recorded(records, "methods"))["Houlsby"]
        want = forgotten(row) / gained(row)
        wrong = [
            (1 / want, "that is nats learned for each one forgotten: the other way round"),
            (
                row["old_after"] / gained(row),
                "take off what the base was from the old floor already",
            ),
        ]
        expect.close(value, want, tol=0.01, what="the price", hints=wrong)
