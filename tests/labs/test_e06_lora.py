"""The checks of lab e06: adapters, graded by what is trained, held, and multiplied."""

from __future__ import annotations

from itertools import pairwise
from random import randint, uniform

import torch
import torch.nn.functional as F

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.verdicts import as_above

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
    "minitrain/finetuning/tensor.py",
)
BF16 = torch.bfloat16
LIKELY = {
    "mat1 and mat2 shapes": "the shapes do not fit: A is (R, I) and reads x, B is (O, R) and writes y. "
    "`F.linear(x, A)` is x Aᵀ",
    "has no attribute 'weight'": "this layer has no `weight`: it may be quantized. The layer is called, not opened",
}
DTYPES = {
    "the same dtype": "this layer is bfloat16, A and B are float32: the layer is given x as it came, only what goes "
    "through A is taken to float32, and what is added is taken to y's dtype",
}

OF_THE_ANSWER = (
    "that is float32, and this layer answers in bfloat16: what is added comes back in the dtype of the layer's "
    "answer"
)


def drawn(rows, columns, dtype=torch.float32):
    return (torch.randn(rows, columns) / columns**0.5).to(dtype)


def scale():
    """A scaling that is no power of two."""
    return uniform(1.2, 3.9)


def linear_of(case):
    """What the base alone computes."""
    weight, bias = case["weight"], case.get("bias")
    if case.get("base") in ("coded", "narrow"):
        weight = (weight * 64).round().clamp(-127, 127) / 64
    if case.get("base") == "narrow":
        return lambda x: F.linear(x, weight).bfloat16()
    return lambda x: F.linear(x, weight.to(x.dtype), bias)


def lora_case(ins, outs, rank, shapes, dtype=torch.float32, base="dense", bias=False):
    """x of several shapes, (…, I). B is positive, as the probe's dy is: no gradient cancels out.

    "set" is what A and B are after a step, "then" after one more."""
    now, then = (
        {"lora_A": drawn(rank, ins), "lora_B": torch.rand(outs, rank) + 0.5} for _ in range(2)
    )
    return {
        "base": base,
        "weight": drawn(outs, ins, dtype),
        "bias": torch.randn(outs).to(dtype) if bias else None,
        "arguments": (rank, scale()),
        "x": [torch.randn(*shape, ins).to(dtype) for shape in shapes],
        "set": now,
        "then": then,
    }


def lora_answer(case, turn, part=lambda case, x, a, b: lora_value(case, x, a, b)):
    """y and the gradients of x, A and B in the answer of `part`, for the probe's dy."""
    x = case["x"][turn["at"]].clone().requires_grad_()
    a, b = (case["set"][name].clone().requires_grad_() for name in ("lora_A", "lora_B"))
    y = part(case, x, a, b)
    y.backward(turn["dy"])
    return y.detach(), x.grad, a.grad, b.grad


def can_begin(got, *names):
    """These have a gradient in the very first backward."""
    for name in names:
        found = got["fresh"]["gradients"].get(name)
        expect.that(
            found is not None and found.any(),
            f"while B is still zero, backward gives `{name}` no gradient: so it never moves. A and B are in what "
            "forward computes from the first step on",
        )


def by_chance(turn):
    """Hints on an answer that the same x did not get again."""
    words = "a second call with the same x gives another answer: forward has no dropout, and keeps nothing"
    return [] if turn["is_same"] else [(turn["y"], words)]


def lora_value(case, x, a, b, scaling=None):
    scaling = case["arguments"][1] if scaling is None else scaling
    added = F.linear(F.linear(x.to(a.dtype), a), b) * scaling
    y = linear_of(case)(x)
    return y + added.to(y.dtype)


class TestLoRA(Exercise):
    """LoRA beside a layer"""

    name = "LoRA"
    reference = "minitrain.finetuning.adapters.lora:LoRA"
    hidden = HIDDEN

    def cases(self):
        return [
            lora_case(7, 5, 3, [(4,), (2, 3), ()], bias=True),
            lora_case(6, 11, 1, [(1, 1), (3,)]),
            lora_case(12, 12, 5, [(2, 2)]),
            lora_case(9, 4, 2, [(3,), (2, 2)], base="coded"),
            lora_case(8, 6, 4, [(5,)], dtype=BF16),
        ]

    def runs(self, submission, cases=None):
        cases = self.cases() if cases is None else cases
        with expect.because({**LIKELY, **DTYPES}):
            return list(zip(cases, submission.run(probes.carried, cases)))

    @check(points=3, title="it starts as nothing: B zero, A random, both float32")
    def test_starts(self, submission):
        dense = [case for case in self.cases() if case["base"] == "dense"]
        rows = self.runs(submission, [case for case in dense if case["weight"].dtype != BF16])
        self.are_all_named(rows)
        for case, got in rows:
            named = got["first"]["named"]
            a, b = named["lora_A"], named["lora_B"]
            expect.that(
                a.any() or b.any(),
                "A and B are both zero: then neither ever has a gradient, since each one's contains the other. "
                "B begins as zero, A at random",
            )
            expect.that(
                not b.any() or a.any(),
                "A is zero and B is random: here it is the other way round, as in the paper",
            )
            expect.that(
                not b.any(), "B does not begin as zero: then the model is another one at once"
            )
            expect.identical(
                got["first"]["y"],
                got["first"]["plain"],
                what="what a fresh adapter gives, beside the bare layer",
                hints=[
                    (
                        F.linear(case["x"][0], case["weight"]),
                        "the layer's bias is missing: the layer is called, not opened",
                    )
                ],
            )
        self.is_random(submission)

    def are_all_named(self, rows):
        for case, got in rows:
            outs, ins = case["weight"].shape
            self.are_named(got["first"]["named"], case["arguments"][0], ins, outs)

    def are_named(self, named, rank, ins, outs):
        for name, shape in (("lora_A", (rank, ins)), ("lora_B", (outs, rank))):
            expect.that(
                name in named,
                f"there is no parameter `{name}`, but {sorted(named) or 'none at all'}: make it "
                "`self.{0} = torch.nn.Parameter(…)`".format(name),
            )
            found = named[name]
            expect.that(
                tuple(found.shape) == shape,
                f"`{name}` is {tuple(found.shape)}, expected {shape} for {ins} to {outs} features and rank {rank}",
            )
            expect.that(
                found.dtype == torch.float32,
                f"`{name}` is {found.dtype}: an adapter is small and can afford float32, in which small steps are "
                "not rounded away (e04)",
            )

    def is_random(self, submission):
        one, two = submission.run(probes.started_twice, drawn(16, 400, BF16), (8, 2.0))
        self.are_named(one, 8, 400, 16)
        a = one["lora_A"]
        expect.that(
            not torch.equal(a, two["lora_A"]),
            "two adapters were made and their A is the same: draw from torch's own generator, without a seed",
        )
        size = a.square().mean().sqrt().item() * 20
        expect.that(
            0.3 < size < 2,
            f"the numbers of A are {size:.2g}/√I in size: draw them about 1/√I, so that A x is of x's own size",
        )

    @check(points=4, title="y = W x + s·B(A x), for every shape, over every kind of layer")
    def test_value(self, submission):
        rows = self.runs(submission)
        with as_above(lambda: self.are_all_named(rows)):
            self.are_values(rows)
        self.is_exact(submission)
        with expect.though("y is right"):
            self.is_thin(submission, "forward")

    def are_values(self, rows):
        for case, got in rows:
            for number, turns in ((0, got["second"]), (1, got["third"])):
                for at, turn in enumerate(turns):
                    what = f"x {tuple(case['x'][at].shape)}"
                    self.is_value(case, {**turn, "at": at}, what, changed=bool(number))
            a, b = case["set"]["lora_A"], case["set"]["lora_B"]
            expect.equal(
                got["delta"],
                case["arguments"][1] * b @ a,
                what="delta()",
                hints=[
                    (b @ a, "that is B A without the scaling"),
                    ((case["arguments"][1] * b @ a).T, "that is transposed"),
                ],
            )

    def is_thin(self, submission, way):
        """No product of both factors, of W's size."""
        case = lora_case(300, 200, 2, [(3,)])
        largest = submission.run(probes.weighed, case)[way]
        expect.that(
            largest < 200 * 300 / 4,
            f"{way} made a tensor of {largest:,} numbers, as large as W, of 200 x 300: read from right to left, A x "
            "first, of R numbers a token. B·A costs R·O·I more multiplications and a matrix of W's size",
        )

    def is_value(self, case, turn, what, changed=False):
        """changed: in eval mode, after A and B have changed once more."""
        earlier, (rank, s) = case["set"], case["arguments"]
        case = {**case, "set": case["then"]} if changed else case
        value, _, _, _ = lora_answer(case, turn)
        x, a, b = (case["x"][turn["at"]], *case["set"].values())
        plain, hints = linear_of(case)(x), by_chance(turn)
        if changed:
            what += " in eval mode, after another change of A and B"
            words = "that is what A and B were before: forward keeps nothing of them"
            hints.append((lora_value(case, x, *earlier.values()), words))
        hints += [
            (plain + s * F.linear(F.linear(x.float(), a), b), OF_THE_ANSWER),
            (plain, "that is the layer alone: A and B add nothing"),
            (lora_value(case, x, a, b, 1.0), "that is without the scaling: s·B(A x)"),
            (lora_value(case, x, a, b, s / rank), "the scaling is used as it is given: it is α/R already"),
            (lora_value(case, x, a, b, s * s), "that is scaled twice"),
            (value - plain, "that is s·B(A x) alone: the layer's own answer is missing"),
            (s * lora_value(case, x, a, b, 1.0), "the layer's own answer is scaled too: scale B(A x) only"),
        ]  # fmt: skip
        tol = 0.01 if value.dtype == BF16 else None
        expect.equal(turn["y"], value, tol=tol, what=f"y for {what}", hints=hints)

    def is_exact(self, submission):
        """A difference that bfloat16 has not: 1 + 2^-10 - 1, in A, in what A gives, and in B; and a layer
        that answers in bfloat16 what is asked in float32."""
        little, ones = 1 + 2.0**-10, torch.ones(3, 1)
        rows = (
            ([1.0, -1.0], [[little, 1.0]], ones, "A of 1 + 2^-10 and 1",
             "A was rounded to bfloat16 on the way: take x to float32, not A to x's dtype"),
            ([1.0, 0.0], [[little, 0.0], [1.0, 0.0]], ones * torch.tensor([1.0, -1.0]), "an A x of 1 + 2^-10 and 1",
             "what A gives was rounded to bfloat16 before B: only what is added, at the end, comes back in the dtype "
             "of the layer's answer"),
            ([1.0, 0.0], [[1.0, 0.0], [1.0, 0.0]], ones * torch.tensor([little, -1.0]), "B of 1 + 2^-10 and -1",
             "B was rounded to bfloat16 on the way: it stays float32"),
        )  # fmt: skip
        cases = [
            {
                "weight": torch.zeros(3, 2, dtype=BF16),
                "arguments": (len(a), 1.0),
                "x": [torch.tensor([x], dtype=BF16)],
                "set": {"lora_A": torch.tensor(a), "lora_B": b},
            }
            for x, a, b, _, _ in rows
        ]
        narrow = lora_case(5, 7, 2, [(3,)], base="narrow")
        *found, last = self.runs(submission, [*cases, narrow])
        for (*_, what, words), (_, got) in zip(rows, found):
            expect.equal(
                got["second"][0]["y"],
                torch.full((1, 3), 2.0**-10, dtype=BF16),
                what=f"y for {what}, over a bfloat16 layer of zeros",
                hints=[(torch.zeros(1, 3, dtype=BF16), words)],
            )
        self.are_values([last])

    @check(points=4, title="only A and B are trained and held; x has the gradient of both ways")
    def test_gradients(self, submission):
        rows = self.runs(submission)
        for case, got in rows:
            outs, ins = case["weight"].shape
            rank = case["arguments"][0]
            names = set(got["first"]["named"])
            numbers = sum(p.numel() for p in got["first"]["named"].values())
            expect.that(
                names == {"lora_A", "lora_B"} and numbers == rank * (ins + outs),
                f"the adapter has the parameters {sorted(names)}, {numbers} numbers, and not R(I + O) = "
                f"{rank * (ins + outs)}: they are `lora_A` and `lora_B` alone"
                + self.of_a_layer(names),
            )
            expect.that(
                got["first"]["held"] <= 1,  # the scaling may be a tensor
                f"beside A and B the adapter holds {got['first']['held']} numbers more, in buffers or attributes: "
                "forward is given layer and x each time, nothing of them is kept",
            )
            expect.that(
                all(got["untouched"]), "the layer's own weights were changed: only A and B learn"
            )
            with as_above(lambda: (self.are_all_named(rows), self.are_values(rows))):
                for at, turn in enumerate(got["second"]):
                    self.are_gradients(case, {**turn, "at": at})
                can_begin(got, "lora_B")
        with expect.though("the gradients are right"):
            self.is_thin(submission, "backward")

    def of_a_layer(self, names):
        if not any("." in name for name in names):
            return ""
        return ". The layer is no part of it (`self.base = base` would make it one); forward is given it each time"

    def are_gradients(self, case, turn):
        _, dx, da, db = lora_answer(case, turn)
        expect.that(
            not any(turn["of_base"]), "the layer's own weights got a gradient: they are frozen"
        )
        names = {"lora_B": db, "lora_A": da}
        for name, want in names.items():
            found = turn["gradients"][name]
            expect.that(
                found is not None,
                f"`{name}` has no gradient: it was detached, or copied, on the way",
            )
            expect.equal(
                found, want, tol=0.02 if dx.dtype == BF16 else None, what=f"the gradient of {name}"
            )
        x = case["x"][turn["at"]].clone().requires_grad_()
        (alone,) = torch.autograd.grad(linear_of(case)(x), x, turn["dy"])
        expect.equal(
            turn["dx"],
            dx,
            tol=0.02 if dx.dtype == BF16 else None,
            what="the gradient of x",
            hints=[
                (
                    alone,
                    "that is the layer's part alone: layers before this one need A's and B's too",
                ),
                (
                    dx - alone,
                    "that is A's and B's part alone: the frozen layer passes gradients on, too",
                ),
            ],
        )

    @check(points=3, title="the layer is called once; B·A is never made")
    def test_mechanism(self, submission):
        cases = [case for case in self.cases() if case["weight"].dtype != BF16]
        for _, got in self.runs(submission, cases):
            for turn in got["second"]:
                expect.that(
                    turn["calls"] == 1,
                    f"the layer was called {turn['calls']} times in one forward, expected once: it may be quantized, "
                    "or cut over ranks, and knows itself how to compute",
                )
        self.is_thin(submission, "forward")


class TestMergedLinear(Exercise):
    """An adapter inside the weights"""

    name = "merged_linear"
    reference = "minitrain.finetuning.adapters.lora:merged_linear"
    hidden = HIDDEN

    def cases(self):
        found = []
        for kind, ins, outs, dtype, bias in (
            ("dense", 7, 5, torch.float32, True),
            ("dense", 48, 64, BF16, True),
            ("dense", 40, 50, BF16, False),
            ("dense", 33, 20, torch.float16, False),
            ("dense", 1, 3, torch.float32, False),
            ("quantized", 6, 9, torch.float32, False),
            ("quantized", 4, 7, torch.float32, True),
        ):
            own = torch.randn(outs).to(dtype) if bias else None
            delta = 0.05 * torch.randn(outs, ins) / ins**0.5
            found.append((kind, drawn(outs, ins, dtype), own, delta))
        return found

    def runs(self, submission):
        cases = self.cases()
        with expect.because(
            {
                "'Codes' object": "a quantized layer's `weight` is no tensor: `dense_weight(base)` gives W"
            }
        ):
            rows = list(zip(cases, submission.run(probes.merged_by, cases)))
        for _, got in rows:
            expect.that(
                got["linear"],
                f"got {got.get('type', 'another object')}, expected a torch.nn.Linear: one plain layer, as fast as "
                "before it was adapted",
            )
        return rows

    @check(points=3, title="W + ΔW in W's dtype, added in float32 and rounded once; base's bias")
    def test_value(self, submission):
        for (kind, weight, bias, delta), got in self.runs(submission):
            want = (weight.float() + delta).to(weight.dtype)
            expect.identical(
                got["weight"],
                want,
                what=f"the weight, {weight.dtype}".replace("torch.", ""),
                hints=[
                    (weight, "that is W: nothing was added"),
                    (
                        weight + delta.to(weight.dtype),
                        "the difference was rounded to W's dtype before it was added, and the sum once more: add in "
                        "float32, round once",
                    ),
                    ((weight.float() - delta).to(weight.dtype), "that is W - ΔW"),
                    (
                        weight.float() + delta,
                        "that is float32: the merged layer is as wide as the one it stands for",
                    ),
                ],
            )
            expect.that(
                (bias is None) == (got["bias"] is None),
                f"{'the' if kind == 'dense' else 'this quantized'} layer has a bias, and the merged one has none: it "
                'belongs to it (`getattr(base, "bias", None)`)'
                if bias is not None
                else "the layer has no bias, and the merged one has: `bias=False`",
            )
            if bias is not None:
                expect.identical(got["bias"], bias, what="the bias, which stays as it is")
            expect.equal(got["sizes"], [weight.shape[1], weight.shape[0]], what="features in, out")
            y = F.linear(torch.ones(2, weight.shape[1], dtype=want.dtype), want, bias)
            expect.equal(got["y"], y, what="what the merged layer computes")

    @check(points=3, title="W stays, bit for bit: the merged matrix is another one")
    def test_untouched(self, submission):
        for _, got in self.runs(submission):
            expect.that(
                not got["is_base"] and got["untouched"],
                "base itself was changed: taking ΔW away again leaves W with the roundings of both ways. Make a "
                "matrix of its own, then unmerging is letting it go",
            )
            expect.that(
                not got["shares"],
                "the merged weight lies in W's memory: a change of one is a change of the other",
            )
            expect.that(
                got["delta"], "delta itself was changed: make the sum in a tensor of its own"
            )
            expect.that(got["base_bias"], "base's own bias was changed")
            expect.that(
                got["asks"],
                "base's own parameters asked for a gradient, and now one does not: base is left as it is. A Parameter "
                "that the merged layer shares with base is frozen in both",
            )

    @check(points=2, title="it is frozen: no gradient, no graph")
    def test_frozen(self, submission):
        for _, got in self.runs(submission):
            expect.that(
                not got["trained"],
                f"{', '.join(got['trained'])} of the merged layer asks for a gradient: while it is merged an adapter "
                "does not learn; `requires_grad_(False)`",
            )
            expect.that(
                not got["graph"], "the merged weight hangs on a graph: detach what it is made of"
            )


def dora_case(ins, outs, rank, shapes, bias=False):
    case = lora_case(ins, outs, rank, shapes, bias=bias)
    for name in ("set", "then"):
        case[name]["magnitude"] = torch.rand(outs) + 0.5
    return case


def dora_value(case, x, a, b, m, constant=True, along=1, of_start=False, scaled_bias=False, part=1):
    """The answer, or that of a plausible mistake."""
    weight, bias, s = case["weight"], case["bias"], case["arguments"][1]
    v = weight + s * b @ a
    length = torch.linalg.vector_norm(weight if of_start else v, dim=along)  # (O,), or (I,)
    length = length.detach() if constant else length
    turned = v / (length[:, None] if along == 1 else length)
    if part == 0:  # lengths forgotten
        turned = v
    y = F.linear(x, m[:, None] * turned)
    if bias is None:
        return y
    return y + (bias * m / length if scaled_bias and along == 1 else bias)


def dora_answer(case, turn, **mistake):
    leaves = [case["x"][turn["at"]], *case["set"].values()]
    x, a, b, m = (z.clone().requires_grad_() for z in leaves)
    y = dora_value(case, x, a, b, m, **mistake)
    y.backward(turn["dy"])
    return y.detach(), {"lora_A": a.grad, "lora_B": b.grad, "magnitude": m.grad}, x.grad


CUT_OFF = (
    "what `self.delta()` gives, or is made under no_grad, is cut off from backward: x goes through lora_A and "
    "lora_B themselves"
)
ROWS = (
    "lengths are of the rows of V (O, I), dim=1: one for each of the O outputs, in `magnitude` too"
)


class TestDoRA(Exercise):
    """DoRA: length and direction apart"""

    name = "DoRA"
    reference = "minitrain.finetuning.adapters.dora:DoRA"
    hidden = HIDDEN

    def runs(self, submission):
        cases = [
            dora_case(7, 5, 3, [(4,), (2, 3)], bias=True),
            dora_case(6, 11, 1, [(1, 1), ()]),
            dora_case(8, 8, 2, [(3, 2)]),
        ]
        with expect.because({**LIKELY, "must match the size": ROWS}):
            rows = list(zip(cases, submission.run(probes.carried, cases)))
        for case, got in rows:
            self.are_lengths(got["first"]["named"], len(case["weight"]))
        return rows

    def are_lengths(self, named, outs):
        expect.that(
            "magnitude" in named,
            f"there is no parameter `magnitude`, but {sorted(named)}: one length for each row of W",
        )
        expect.that(
            tuple(named["magnitude"].shape) == (outs,),
            f"`magnitude` is {tuple(named['magnitude'].shape)}, expected ({outs},): a length for each row, that is "
            f"for each of the {outs} outputs",
        )

    def is_thin(self, submission, *ways):
        """Nothing of W's size, in what waits for backward or is made in it."""
        case = dora_case(300, 200, 2, [(3,)])
        with expect.because({"must match the size": ROWS}):
            found = submission.run(probes.weighed, case)
        words = {"saved": "waits for backward", "backward": "is made in backward"}
        for way in ways:
            expect.that(
                found[way] < 200 * 300 / 4,
                f"beside W, of 200 x 300, a tensor of {found[way]:,} numbers {words[way]}: "
                + self.why_large(case, found["gradients"]),
            )

    def why_large(self, case, gradients):
        """The gradients say whether backward goes through the length."""
        apart = "put y together from W x and B(A x), each times m/‖V‖"
        idle = [name for name in ("lora_A", "lora_B") if gradients.get(name) is None]
        if idle:
            return f"{apart}. And {' and '.join(idle)} got no gradient: {CUT_OFF}"
        turn = {"at": 0, "dy": torch.ones(3, 200)}
        _, want, _ = dora_answer(case, turn)
        _, through, _ = dora_answer(case, turn, constant=False)
        if expect.difference(gradients, through, 5e-4) is None:
            return (
                "the length ‖V‖ is in the graph, and V with it. Take the length under "
                "torch.no_grad(), or detach it"
            )
        if expect.difference(gradients, want, 5e-4) is None:
            return apart
        return f"{apart}, and let the length be a constant"

    @check(points=2, title="it starts as the layer: magnitudes are the rows' lengths")
    def test_starts(self, submission):
        for parameters in submission.run(probes.started_twice, drawn(16, 40), (8, 2.0)):
            self.are_lengths(parameters, 16)
        for case, got in self.runs(submission):
            first, weight = got["first"], case["weight"]
            expect.equal(
                first["named"]["magnitude"],
                torch.linalg.vector_norm(weight, dim=1),
                what="magnitude at the start",
                hints=[
                    (torch.ones(len(weight)), "those are ones: begin with the lengths of W's rows"),
                    (
                        torch.linalg.vector_norm(weight, dim=0),
                        "those are lengths of columns: W is (O, I)",
                    ),
                    *self.of_biased_rows(case),
                ],
            )
            x, lengths = case["x"][0], torch.linalg.vector_norm(weight, dim=1)
            expect.equal(
                first["y"],
                first["plain"],
                what="what a fresh adapter gives",
                hints=[
                    (
                        F.linear(x, lengths[:, None] * weight, case["bias"]),
                        "that is not divided by ‖V‖: m is the whole length of a row",
                    )
                ],
            )

    def of_biased_rows(self, case):
        if case["bias"] is None:
            return []
        rows = case["weight"] + case["bias"][:, None]
        words = "those are lengths of W's rows with the bias in each number: a bias is no part of the row"
        return [(torch.linalg.vector_norm(rows, dim=1), words)]

    @check(
        points=4, title="y = m·(W + s·B·A) x / ‖W + s·B·A‖, the length taken anew, bias as it is"
    )
    def test_value(self, submission):
        self.are_values(self.runs(submission))
        with expect.though("y is right"):
            self.is_thin(submission, "saved")

    def are_values(self, rows):
        for case, got in rows:
            for changed, turns in ((False, got["second"]), (True, got["third"])):
                for at, turn in enumerate(turns):
                    self.is_value(case, {**turn, "at": at}, changed)

    def is_value(self, case, turn, changed=False):
        """changed: in eval mode, after A, B and m have changed once more."""
        x, s, (old_a, old_b, old_m) = (
            case["x"][turn["at"]],
            case["arguments"][1],
            case["set"].values(),
        )
        a, b, m = case["then" if changed else "set"].values()
        weight, bias = case["weight"], case["bias"]
        value = dora_value(case, x, a, b, m)
        length = torch.linalg.vector_norm(weight + s * b @ a, dim=1)
        normed = m / length
        low = s * F.linear(F.linear(x, a), b)
        none = 0 if bias is None else bias
        hints = [
            (F.linear(x, weight, bias) + low, "that is LoRA: no length was learned"),
            (
                dora_value(case, x, a, b, m, of_start=True),
                "that divides by the length of W's rows: as A and B learn, V = W + s·B·A has others. Take the length "
                "of V anew in each forward",
            ),
            (
                dora_value(case, x, a, b, m, scaled_bias=True),
                "the bias was scaled too: only the matrix is taken apart, and the bias is added as it is",
            ),
            (dora_value(case, x, a, b, m, part=0), "that is not divided by ‖V‖: m is the whole length of a row"),
            (normed * F.linear(x, weight) + low + none, "only W x was scaled: m/‖V‖ belongs to all of V"),
            (F.linear(x, weight) + normed * low + none, "only B A x was scaled: m/‖V‖ belongs to all of V"),
        ]  # fmt: skip
        hints += by_chance(turn)
        straight, turned = (z.square().sum(1) for z in (weight, s * b @ a))
        apart = (value - none) * length / (straight + turned).sqrt() + none
        hints.append(
            (apart, "‖V‖² is not ‖W‖² + ‖s·B·A‖²: measure the rows of the sum, V = W + s·B·A")
        )
        what = f"y for x {tuple(x.shape)}"
        if changed:
            what += " in eval mode, after another change of A, B and magnitude"
            old = torch.linalg.vector_norm(weight + s * old_b @ old_a, dim=1)
            hints += [
                ((value - none) * length / old + none, "that divides by ‖V‖ as it was before: take the length of V anew in each forward, in eval mode too"),
                (dora_value(case, x, old_a, old_b, old_m), "that is what A, B and magnitude were before: forward keeps nothing of them"),
            ]  # fmt: skip
        if weight.shape[0] == weight.shape[1]:
            columns = dora_value(case, x, a, b, m, along=0)
            hints.append((columns, "those are lengths of columns: a row of W makes one output"))
        expect.equal(turn["y"], value, what=what, hints=hints)

    @check(points=4, title="backward treats the length as a constant")
    def test_gradients(self, submission):
        rows = self.runs(submission)
        with as_above(lambda: self.are_values(rows)):
            for case, got in rows:
                for at, turn in enumerate(got["second"]):
                    self.are_gradients(case, {**turn, "at": at})
                can_begin(got, "lora_B", "magnitude")
        with expect.though("the gradients are right"):
            self.is_thin(submission, "backward")

    def are_gradients(self, case, turn):
        expect.that(not any(turn["of_base"]), "the layer's own weights got a gradient")
        _, want, dx = dora_answer(case, turn)
        _, through, _ = dora_answer(case, turn, constant=False)
        words = (
            "backward went through ‖V‖, and made the gradient of a whole matrix for it: take the length "
            "under torch.no_grad(), or detach it (section 4.3 of the paper)"
        )
        for name in ("lora_A", "lora_B", "magnitude"):
            found = turn["gradients"].get(name)
            cut_off = "" if name == "magnitude" else f", and {CUT_OFF}"
            expect.that(found is not None, f"`{name}` has no gradient: it must learn{cut_off}")
            expect.equal(
                found,
                want[name],
                tol=5e-4,  # A x is a sum of few numbers: it may be small, its rounding is not
                what=f"the gradient of {name}",
                hints=[(through[name], words)],
            )
        expect.equal(turn["dx"], dx, tol=5e-4, what="the gradient of x")

    @check(points=2, title="no matrix of W's size waits for backward, none is made in it")
    def test_memory(self, submission):
        self.is_thin(submission, "saved", "backward")


HOUSLBY_SIZES = ((7, 10, 3), (5, 6, 1), (9, 4, 6))  # I, D, M


class TestHoulsby(Exercise):
    """A bottleneck after a sublayer"""

    name = "Houlsby"
    reference = "minitrain.finetuning.adapters.bottleneck:Houlsby"
    hidden = HIDDEN

    def runs(self, submission):
        cases = []
        for ins, width, narrow in HOUSLBY_SIZES:
            shapes = [(narrow, width), (width, narrow), (narrow,), (width,)]
            cases.append({
                "weight": drawn(width, ins), "bias": torch.randn(width),
                "arguments": (width, narrow),
                "x": [torch.randn(4, ins), torch.randn(2, 3, ins), torch.randn(ins)],
                "by_shape": {shape: torch.randn(*shape) / shape[-1] ** 0.5 for shape in shapes},
            })  # fmt: skip
        likely = {
            "mat1 and mat2 shapes": "D reads y, which the layer gives, of width W: D is (M, W), U is (W, M)",
        }
        with expect.because(likely):
            return list(zip(cases, submission.run(probes.bottlenecks, cases)))

    def sized(self, case, got):
        width, narrow = case["arguments"]
        expect.that(
            not got["owns_base"],
            f"the adapter has {len(got['shapes'])} parameters, the layer's own among them. The layer is no part of it "
            "(`self.base = base` would make it one); forward is given it each time",
        )
        want = sorted([[narrow, width], [width, narrow], [narrow], [width]])
        expect.equal(
            sorted(got["shapes"]),
            want,
            what=f"shapes of the trained parameters, width {width}, bottleneck {narrow}",
            hints=[(got["shapes"], "D (M, W), d (M,), U (W, M) and u (W,) are trained")]
            if len(got["shapes"]) == 4
            else [
                (sorted(got["shapes"]), "two matrices and their biases are trained: D, d, U and u")
            ],
        )

    @check(points=3, title="it starts as nothing, and can learn")
    def test_starts(self, submission):
        moved = []
        for case, got in self.runs(submission):
            self.sized(case, got)
            first = got["first"]
            expect.equal(
                first["y"],
                first["plain"],
                what="what a fresh adapter gives, beside the bare layer",
                hints=[
                    (torch.zeros_like(first["plain"]), "the layer's own answer is missing: y + …"),
                    (first["y"], "U and its bias u begin as zero, so that nothing is added to y"),
                ],
            )
            moved += [g for shape, g in first["gradients"] if len(shape) == 2]
        expect.that(
            any(moved),  # a bend that gives 0 may silence a narrow one
            "after the first backward neither U nor D has any gradient: D and U are both zero, or the bend gives 0. "
            "Only one of the two begins as zero",
        )

    @check(points=3, title="y + U·gelu(D y + d) + u: after the layer, around it a sum")
    def test_value(self, submission):
        for case, got in self.runs(submission):
            self.sized(case, got)
            width, narrow = case["arguments"]
            shape = case["by_shape"]
            down, up = shape[narrow, width], shape[width, narrow]
            for x, turn in zip(case["x"], got["second"]):
                y = F.linear(x, case["weight"], case["bias"])
                bent_first = F.linear(F.linear(F.gelu(y), down, shape[narrow,]), up, shape[width,])
                inside = F.linear(y, down, shape[narrow,])
                value = y + F.linear(F.gelu(inside), up, shape[width,])
                hints = [
                    (
                        value - y,
                        "the sum with y is missing: U begins as zero, and nothing would pass",
                    ),
                    (
                        y + F.linear(inside, up, shape[width,]),
                        "there is no bend: that is LoRA on y",
                    ),
                    (
                        y + F.linear(F.relu(inside), up, shape[width,]),
                        "that is relu: here it is gelu",
                    ),
                    (y, "that is y alone"),
                    (y + bent_first, "y is bent before D: the bend stands between D and U"),
                ]
                tanh = y + F.linear(F.gelu(inside, approximate="tanh"), up, shape[width,])
                bends = [  # both, where they are alike; their gradients need not be
                    bend
                    for bend, each in (("none", value), ("tanh", tanh))
                    if expect.difference(turn["y"], each, 1e-5) is None
                ]
                if not bends:
                    expect.equal(turn["y"], value, what=f"y for x {tuple(x.shape)}", hints=hints)
                with expect.though("y is right"):
                    self.are_gradients(case, x, turn, bends or ["none"])
                expect.that(
                    turn["calls"] == 1, f"the layer was called {turn['calls']} times, expected once"
                )
            expect.that(all(got["untouched"]), "the layer's own weights were changed")

    def are_gradients(self, case, x, turn, bends):
        """By one of the bends."""
        width, narrow = case["arguments"]
        names = {"U": (width, narrow), "u": (width,), "D": (narrow, width), "d": (narrow,)}
        found = {tuple(g.shape): g for g in turn["gradients"].values() if g is not None}
        for name, shape in names.items():
            expect.that(
                shape in found, f"{name} has no gradient: it was detached, or copied, on the way"
            )
        wanted = [self.gradients(case, x, turn["dy"], bend) for bend in bends]
        own, dx, alone = next(
            (each for each in wanted if not any(off(found[s], each[0][s]) for s in names.values())),
            wanted[0],
        )
        for name, shape in names.items():
            expect.equal(found[shape], own[shape], tol=5e-4, what=f"the gradient of {name}")
        hints = [
            (alone, "that is the layer's part alone: y is detached on its way into D"),
            (dx - alone, "that is the bottleneck's part alone: the layer passes gradients on, too"),
        ]
        expect.equal(turn["dx"], dx, tol=5e-4, what="the gradient of x", hints=hints)

    def gradients(self, case, x, dy, bend):
        """Of the parameters by their shape, of x, and the layer's part of the latter."""
        width, narrow = case["arguments"]
        x = x.clone().requires_grad_()
        leaves = {shape: z.clone().requires_grad_() for shape, z in case["by_shape"].items()}
        y = F.linear(x, case["weight"], case["bias"])
        inside = F.gelu(F.linear(y, leaves[narrow, width], leaves[narrow,]), approximate=bend)
        added = F.linear(inside, leaves[width, narrow], leaves[width,])
        (alone,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        (y + added).backward(dy)
        return {shape: leaf.grad for shape, leaf in leaves.items()}, x.grad, alone


def off(found, wanted):
    """Whether a gradient is another one."""
    return expect.difference(found, wanted, 5e-4) is not None


class TestPrefix(Exercise):
    """Keys and values that no token made"""

    name = "Prefix"
    reference = "minitrain.finetuning.prompts:Prefix"
    hidden = HIDDEN

    def runs(self, submission):
        cases = []
        for model, count, width in (
            ((3, 4, 2, 6), 5, 17),
            ((2, 2, 2, 4), 1, 23),
            ((4, 3, 1, 2), 3, 19),
        ):
            cases.append({"model": model, "count": count, "width": width})
        likely = {
            "backward through the graph a second time": "what the MLP made is kept from one call to the next, graph and "
            "all: of_layer makes it anew, since the MLP learns in between"
        }
        with expect.because(likely):
            return list(zip(cases, submission.run(probes.prefixes, cases)))

    @check(points=2, title="keys and values (K, n, C) for each layer, other ones in each")
    def test_shapes(self, submission):
        self.are_shaped(self.runs(submission))

    def are_shaped(self, rows):
        for case, got in rows:
            layers, _, kv_heads, size = case["model"]
            shape = (kv_heads, case["count"], size)
            for when in ("before", "after"):
                pairs = [
                    (i, kind, z)
                    for i, pair in enumerate(got[when])
                    for kind, z in zip(("keys", "values"), pair)
                ]
                for layer, kind, z in pairs:
                    expect.that(
                        tuple(z.shape) == shape and z.dtype == torch.float32,
                        f"layer {layer}, {kind}, {when} the MLP is dropped: {tuple(z.shape)}, expected (K, n, C) = "
                        f"{shape}: as attention reads them, a head, a token, a feature",
                    )
                distinct = {tuple(z.flatten().tolist()) for _, _, z in pairs}
                expect.that(
                    len(distinct) == 2 * layers,
                    f"{when} the MLP is dropped, {2 * layers} sets of keys and values have {len(distinct)} different "
                    "ones: every layer has its own",
                )
                rows = {
                    tuple(row) for _, _, z in pairs for row in z.transpose(0, 1).flatten(1).tolist()
                }
                expect.that(
                    len(rows) == 2 * layers * case["count"],
                    f"{when} the MLP is dropped, learned tokens have the same keys or values: draw each at random",
                )
            same = torch.equal(got["before"][0][0], got["others"][0][0])
            expect.that(not same, "two prefixes are the same: draw from torch's own generator")
            expect.that(
                got["enabled"], "`enabled` is no longer True: the switch is the attention's"
            )
            words = "`enabled` is read by the attention alone: of_layer gives its keys and values in either case"
            expect.equal(
                got["off"],
                got["before"],
                what="keys and values of each layer while `enabled` is False",
                hints=[(got["off"], words)],
            )

    def is_made(self, case, got):
        narrow, wide = got["sizes"]
        expect.that(
            wide > narrow,
            f"an MLP of width {case['width'] + 5} has as many trained numbers as one of {case['width']}: {wide}. Until "
            "it is dropped, keys and values are made by an MLP of that width",
        )
        expect.that(
            got["learned"] > 0,
            "before the MLP is dropped, no trained number has a gradient of the keys and values: they are made in each "
            "forward, with a graph",
        )
        expect.that(
            got["overlap"] > 0,
            "the first layer's keys and the last one's are made from different numbers: the same n vectors, and one "
            "MLP, make all of them",
        )
        expect.that(
            all(got["own"]),
            "a token's keys and values are made from several of the n vectors, and no number is one token's alone: of "
            "each vector the MLP makes one token's. Heads come to the front by moving dimensions (`permute`); a "
            "reshape of (n, K, C) to (K, n, C) mixes tokens and heads",
        )

    @check(points=4, title="one MLP of n vectors makes the keys and values of all layers")
    def test_made(self, submission):
        self.are_made(self.runs(submission))

    def are_made(self, rows):
        for case, got in rows:
            self.is_made(case, got)
            expect.that(
                not got["owns_model"],
                "the model's own parameters are parameters of the prefix: `self.model = model` makes them so, keep "
                "model.config",
            )

    @check(points=4, title="drop_mlp keeps what it made, n·L·2·K·C numbers, and nothing else")
    def test_dropped(self, submission):
        rows = self.runs(submission)
        with as_above(lambda: (self.are_shaped(rows), self.are_made(rows))):
            self.are_dropped(rows)

    def are_dropped(self, rows):
        for case, got in rows:
            layers, _, kv_heads, size = case["model"]
            table = case["count"] * layers * 2 * kv_heads * size
            self.is_made(case, got)
            for layer, (before, after) in enumerate(zip(got["before"], got["after"])):
                for kind, one, other in zip(("keys", "values"), before, after):
                    expect.equal(
                        other,
                        one,
                        what=f"layer {layer}, {kind} after the MLP was dropped",
                        hints=[
                            (before[kind == "keys"], "keys and values have changed places"),
                            (other, "what stays is what the MLP made of the vectors just before"),
                        ],
                    )
            expect.that(
                got["left"] == table,
                f"after drop_mlp() {got['left']} numbers are trained, expected n·L·2·K·C = {table}: what the MLP made "
                "becomes a parameter, and vectors and MLP go",
            )
            expect.that(
                got["leaves"], "what is left is no leaf: `torch.nn.Parameter(made.detach())`"
            )
            expect.that(
                got["overlap_after"] == 0,
                "after drop_mlp() layers still share numbers: each key and value is its own parameter now",
            )
            expect.that(
                got["fails"] is None,
                f"a second drop_mlp() fails ({got['fails']}): once the MLP is gone there is nothing to do",
            )
            expect.equal(
                got["twice"], got["after"], what="keys and values after a second drop_mlp()"
            )
            expect.that(
                got["is_kept"],
                "a second drop_mlp() puts another parameter in the place of the kept one: who trains the first, trains "
                "nothing. Once the MLP is gone there is nothing to do",
            )
            expect.that(
                got["learns"] > 0.99,
                f"after drop_mlp() only {got['learns']:.0%} of the numbers have a gradient",
            )


def rows_case(ranks, tokens=2, ins=6, outs=9, spare=3):
    """A batch: `ranks` a row's, None for no adapter; pages lie scattered, the last one is used."""
    total = sum(rank or 0 for rank in ranks)
    pages = 1 + total + spare
    free = (1 + torch.randperm(pages - 1)).tolist()
    tables = [[free.pop() for _ in range(rank or 0)] for rank in ranks]
    a, b = torch.randn(pages, ins), torch.randn(pages, outs)
    a[0], b[0] = 0, 0
    return tables, [scale() for _ in ranks], torch.randn(len(ranks), tokens, ins), a, b


def rows_answer(tables, scalings, x, a, b, fill=None, scaled=True):
    """Row by row; `fill`: the page that shorter tables are filled up with by mistake."""
    longest = max(map(len, tables), default=0)
    out = []
    for table, s, own in zip(tables, scalings, x):
        table = table + [fill] * (longest - len(table)) if fill is not None else table
        out.append((own @ a[table].T) @ b[table] * (s if scaled else 1.0))
    return torch.stack(out)


GATHERED = "a[pages] is (B, R, I) and b[pages] (B, R, O): x (B, T, I) by the first, transposed, then by the second"
PAGES = {
    "mat1 and mat2 shapes": GATHERED,
    "Expected size for first two dimensions": GATHERED,
    "tensors used as indices must be long": "page numbers are indices in every batch: `dtype=torch.long` makes them so. "
    "Without it the tables of a batch in which no row has an adapter, torch.tensor([[], []]), are float32",
    "is out of bounds for dimension 0": "that is a page of no table: an adapter's pages lie wherever they were free, and "
    "its table lists each of them",
    "must match the size of tensor": "what is multiplied is (B, T, R), then (B, T, O), rows first: the scalings, one a "
    "row, are (B, 1, 1) beside it",
}


class TestRows(Exercise):
    """An adapter a row"""

    name = "Rows"
    reference = "minitrain.finetuning.many:Rows"
    hidden = HIDDEN

    @check(
        points=3, title="each row gets its own adapter's B(A x), of any rank; none adds exactly 0"
    )
    def test_value(self, submission):
        calls = [
            rows_case([3, None, 5, 1], tokens=4),
            rows_case([2, 2, 2], tokens=1),
            rows_case([None, None], spare=1),
            rows_case([randint(1, 6)], tokens=3, ins=1),
            rows_case([None, 7, None, 2, 4, 1], spare=0, outs=1),
        ]
        tables, scalings, x, a, b = calls[0]
        calls.append((tables[2:], [s + 1 for s in scalings[2:]], x[:2], a.flip(1), b + a[:, :1]))
        with expect.because(PAGES):
            found = submission.run(probes.in_rows, calls)
        for call, got in zip(calls, found["calls"]):
            self.is_own(call, got["out"])
        expect.left_alone(found["calls"], [call[2:] for call in calls], ["x", "a", "b"])
        expect.that(
            found["kept"],
            "the tables were filled up in place: they are the caller's, and the next batch's rows stand in them. "
            "Make new lists",
        )

    def is_own(self, call, got, what="", hints=()):
        tables, scalings, x, a, b = call
        want = rows_answer(*call)
        ranks = [len(table) or None for table in tables]
        last, first = len(a) - 1, next((table[0] for table in tables if table), 0)
        hints = [
            (
                rows_answer(*call, fill=last),
                "shorter tables were filled with page -1: that is the last page, and belongs to somebody. Page 0 holds "
                "zeros",
            ),
            (
                rows_answer(*call, fill=1),
                "shorter tables were filled with page 1: page 0 holds zeros",
            ),
            (
                rows_answer(*call, fill=first),
                "shorter tables were filled with another row's page: page 0 holds zeros",
            ),
            (rows_answer(*call, scaled=False), "the scalings are missing: one a row"),
            (
                rows_answer(tables, scalings[:1] * len(x), x, a, b),
                "all rows have the first one's scaling: each has its own",
            ),
            (
                rows_answer(tables[:1] * len(x), scalings[:1] * len(x), x, a, b),
                "all rows have the first one's adapter: each has its own",
            ),
            (torch.zeros_like(want), "nothing is added at all"),
            *hints,
        ]
        runs = [list(range(table[0], table[0] + len(table))) if table else [] for table in tables]
        if max((page for run in runs for page in run), default=0) <= last:
            words = (
                "those are the pages that follow each table's first one: an adapter's pages lie wherever they were "
                "free, and its table lists each of them"
            )
            hints.append((rows_answer(runs, scalings, x, a, b), words))
        what = what or f"what is added to {len(x)} rows of ranks {ranks}"
        expect.equal(got, want, what=what, hints=hints)
        for row, table in enumerate(tables):
            expect.that(
                table or not got[row].any(),
                f"row {row} has no adapter, and what is added to it is not exactly 0",
            )

    @check(points=4, title="two matmuls for the whole batch, however many adapters it has")
    def test_matmuls(self, submission):
        self.is_batched(submission, [4, None, 2], [1, 2, 3, 4, None, 5, 6, 7, 3, 2])

    def is_batched(self, submission, *batches):
        cases = [rows_case(list(ranks)) for ranks in batches]
        with expect.because(PAGES):
            found = submission.run(probes.effort, cases)
        for (tables, _, x, a, b), got in zip(cases, found):
            rank = max(map(len, tables))
            want = 2 * len(x) * x.shape[1] * rank * (a.shape[1] + b.shape[1])
            words = f"each row has R = {rank} pages at most"
            if got["flops"] == want // rank * len(a):
                words = (
                    f"gather the pages of each row before multiplying, and not all {len(a)} pages"
                )
            expect.that(
                got["flops"] <= want,
                f"`added` took {got['flops']:,} FLOPs, expected 2·B·T·R·(I + O) = {want:,}: {words}",
            )
            loops = got["matmuls"] >= len(tables)
            expect.that(
                0 < got["matmuls"] <= 2,
                f"{len(tables)} rows took {got['matmuls']} matrix products, expected 2: gather (B, R, I) and (B, R, O), "
                "then one batched product each (`torch.bmm`)"
                + ("; a loop over rows keeps the processor waiting" if loops else ""),
            )

    @check(points=3, title="one batch serves every layer, each with pages of its own")
    def test_layers(self, submission):
        tables, scalings, *_ = rows_case([3, None, 2, 1], spare=2)
        pages = 1 + 6 + 2
        for sizes in (((8, 7), (8, 7), (8, 7)), ((4, 3), (5, 8), (1, 9))):
            layers = []
            for ins, outs in sizes:
                a, b = torch.randn(pages, ins), torch.randn(pages, outs)
                a[0], b[0] = 0, 0
                layers.append((torch.randn(4, 2, ins), a, b))
            with expect.because(PAGES):
                found = submission.run(probes.layers_of_one_batch, tables, scalings, layers)
            first = tables, scalings, *layers[0]
            with as_above(lambda first=first, out=found[0]["out"]: self.is_own(first, out)):
                for number, (layer, call) in enumerate(zip(layers, found)):
                    self.is_layer(number, (tables, scalings, *layer), call["out"], layers[0])
            expect.left_alone(found, layers, ["x", "a", "b"])
        with as_above(lambda: self.is_batched(submission, [4, None, 2])):
            self.is_batched(submission, [2, 1, None, 3, 2])

    def is_layer(self, number, call, got, first):
        tables, scalings, x, a, b = call
        _, other_a, other_b = first
        hints = []
        if other_a.shape == a.shape and other_b.shape == b.shape:
            wrong = rows_answer(tables, scalings, x, other_a, other_b)
            hints = [
                (
                    wrong,
                    "those are the first layer's pages: gather them in `added`, anew in each call",
                )
            ]
        self.is_own(call, got, f"layer {number} of three that one batch goes through", hints)


# --- what is recorded ---

ADAPTED = ("LoRA", "DoRA", "Houlsby", "prefix", "IA3", "BitFit")


def by_method(table):
    found = {row["method"]: row for row in table}
    for name in ("full", *ADAPTED):
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
                row["beside_changed"] == 0,
                f"after {row['merges']} merges beside W, {row['beside_changed']:.1%} of W has changed: expected none",
            )
            expect.that(
                row["in_place_changed"] > 0.02,
                f"after {row['merges']} merges in place only {row['in_place_changed']:.1%} of W has changed: is W "
                "bfloat16?",
            )

    @check(points=2, title="the drift grows as the root of the number of merges")
    def test_growth(self, table):
        rows = sorted(table, key=lambda row: row["merges"])
        first, last = rows[0], rows[-1]
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
            want = 8 * row["trained"] + 4 * row["tensors"]
            expect.that(
                row["optimizer_bytes"] == want,
                f"{name}: the optimizer holds {row['optimizer_bytes']:,} bytes, the closed form says {want:,}: two "
                "float32 means a trained number, and a count of 4 bytes a tensor. Is something else in its groups?",
            )
            expect.that(
                row["gradient_bytes"] == 4 * row["trained"],
                f"{name}: gradients hold {row['gradient_bytes']:,} bytes, expected 4 for each of {row['trained']:,} "
                "trained numbers: is the base frozen?",
            )


class TestMethods(Experiment):
    """Quality beside what is trained"""

    name = "methods"
    rests_on = ("LoRA", "DoRA", "Houlsby", "Prefix")

    @check(points=4, title="every method learns; full fine-tuning comes nearest to the floor")
    def test_learns(self, table):
        found = by_method(table)
        for name, row in found.items():
            expect.that(
                row["new_after"] > -0.02,
                f"{name} ends {row['new_after']:.3f} nats from the floor: nobody can be below it",
            )
            expect.that(
                gained(row) > 0,
                f"{name} has learned nothing of the new stories: {row['new_before']:.3f} before, "
                f"{row['new_after']:.3f} after",
            )
            expect.that(
                row["new_after"] >= found["full"]["new_after"],
                f"{name} ends nearer to the floor than full fine-tuning: was the latter trained by the same steps?",
            )
        for name in ("LoRA", "DoRA"):
            expect.that(
                gained(found[name]) > 1.5 * gained(found["IA3"]),
                f"{name} gained {gained(found[name]):.3f} nats and IA3 {gained(found['IA3']):.3f}: expected much more",
            )

    @check(points=4, title="who learns less forgets less")
    def test_forgets(self, table):
        found = by_method(table)
        full = found["full"]
        for name in ("LoRA", "Houlsby", "IA3"):
            expect.that(
                forgotten(found[name]) < forgotten(full),
                f"{name} forgot {forgotten(found[name]):.3f} nats of the old stories, full fine-tuning "
                f"{forgotten(full):.3f}",
            )
        expect.that(
            forgotten(found["IA3"]) < forgotten(found["Houlsby"]) < forgotten(found["LoRA"]),
            "from IA3 over Houlsby to LoRA more is learned, and more should be forgotten: "
            f"{[round(forgotten(found[n]), 3) for n in ('IA3', 'Houlsby', 'LoRA')]}",
        )


def by_rank(table):
    """rank -> the distances of its seeds; without what is no LoRA."""
    found: dict[int, list[float]] = {}
    for row in table:
        if row["way"] == "LoRA":
            found.setdefault(row["rank"], []).append(row["distance"])
    expect.that(len(found) >= 3, f"{len(found)} ranks of LoRA: 3 or more are asked for")
    return dict(sorted(found.items()))


def mean(numbers):
    return sum(numbers) / len(numbers)


class TestRanks(Experiment):
    """What rank wins, and what it cannot win"""

    name = "ranks"
    rests_on = ("LoRA",)

    @check(points=3, title="each larger rank is nearer to the floor, with three seeds")
    def test_order(self, table):
        found = by_rank(table)
        for (rank, one), (larger, other) in pairwise(found.items()):
            expect.that(
                len(one) >= 3 and len(other) >= 3,
                f"rank {rank} has {len(one)} seeds: 3 are asked for",
            )
            expect.that(
                mean(other) < mean(one) + (max(one) - min(one)),
                f"rank {larger} ends {mean(other):.3f} from the floor, rank {rank} {mean(one):.3f}: it should be nearer",
            )
        ranks = list(found)
        expect.that(
            mean(found[ranks[-1]]) < 0.9 * mean(found[ranks[0]]),
            f"rank {ranks[-1]} is hardly nearer to the floor than rank {ranks[0]}",
        )

    @check(points=2, title="even the whole rank of the blocks misses what lies outside of them")
    def test_missed(self, table):
        ways = {
            way: mean([row["distance"] for row in table if row["way"] == way] or [0.0])
            for way in ("full", "blocks")
        }
        expect.that(
            all(ways.values()), "rows of 'full' and of 'blocks' (all their weights) are asked for"
        )
        expect.that(
            ways["full"] < ways["blocks"],
            f"full fine-tuning ends {ways['full']:.3f} from the floor, all weights of the blocks {ways['blocks']:.3f}: "
            "embedding and last norm should win something",
        )
        largest = mean(list(by_rank(table).values())[-1])
        expect.that(
            largest > ways["full"],
            f"LoRA's largest rank ends {largest:.3f} from the floor, full fine-tuning {ways['full']:.3f}",
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
            wide, own = max(ranks) * rows, sum(ranks)
            for way, together in (("mixed", wide), ("loop", own)):
                want = 2 * rows * size**2 + 4 * size * together
                expect.that(
                    row[f"{way}_flops"] == want,
                    f"{rows} rows, {way}: {row[f'{way}_flops']:,} FLOPs, the closed form says {want:,}",
                )

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
        expect.close(
            value,
            full / lora,
            tol=0.01,
            what="how many times fewer",
            hints=[
                (lora / full, "that is LoRA's over full's: how many times *fewer*?"),
                (1 - lora / full, "that is the share that is spared: how many times fewer?"),
                (full - lora, "that is a difference in bytes: how many times fewer?"),
            ],
        )


class TestEnoughRank(Question):
    """The rank that is enough"""

    name = "enough_rank"
    rests_on = ("ranks",)

    @check(points=5, title="the smallest rank within 20% of the largest one's distance")
    def test_value(self, value, records):
        found = by_rank(expect.recorded(records, "ranks"))
        best = mean(list(found.values())[-1])
        enough = [rank for rank, distances in found.items() if mean(distances) <= 1.2 * best]
        expect.close(
            value,
            min(enough),
            tol=1e-6,
            what="the rank",
            hints=[(max(found), "that is the largest: a smaller one is enough")]
            if min(enough) < max(found)
            else [],
        )


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
        expect.close(
            value,
            want,
            tol=0.01,
            what="the price",
            hints=[
                (1 / want, "that is nats learned for each one forgotten: the other way round"),
                (
                    row["old_after"] / gained(row),
                    "take off what the base was from the old floor already",
                ),
                (
                    row["old_after"] / row["new_after"],
                    "take differences: after less before, before less after",
                ),
            ],
        )
