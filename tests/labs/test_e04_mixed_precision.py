"""The checks of lab e04: mixed precision, graded bit for bit where bits are the point."""

from __future__ import annotations

from dataclasses import astuple
from functools import partial
from itertools import pairwise

import torch

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import hints as hints_of
from minitrain.lab.grading.variants import variant

from .probes import e04_mixed_precision as probes

LAB = "e04_mixed_precision"
SIZES = {
    "cpu": {"width": 64, "layers": 2, "batch": 8, "length": 64, "steps": 100, "alike": 4096},
    "test": {"steps": 48},
}
REVEALS = {
    "lost": Reveal("measured", "below 3e-8, half of FP16's smallest"),
    "bf16_end": Reveal("measured", "0.001 is under half a step of BF16 there"),
    "grows": Reveal("emulated", "E4M3, one scale for all"),
}
HIDDEN = (
    "minitrain/precision/loss_scaling.py",
    "minitrain/precision/master_weights.py",
    "minitrain/precision/formats.py",
    "minitrain/precision/blocks.py",
    "minitrain/precision/delayed_scaling.py",
    "minitrain/precision/low_bit_linear.py",
)
BF16 = torch.bfloat16
DRAWN = ((1, 5), (1, 9), (4, 12), (1, 3))  # m, -e, its powers of two, what is missing above
MASTERS_IN_SELF = "each of these optimizers is right alone: keep the masters in `self`"

FORMS = {
    "E4M3": probes.Form(3, -6, 448.0),
    "E5M2": probes.Form(2, -14, 57344.0),
    "E2M1": probes.Form(1, 0, 6.0),
    "E3M2": probes.Form(2, -2, 28.0),
}


def numbers_of(form):
    """All that are not negative, in order: the place of each is its code."""
    steps, found, exponent = 2**form.mantissa_bits, [], form.smallest_exponent
    subnormal = [k * 2.0 ** (exponent - form.mantissa_bits) for k in range(steps)]
    while 2.0**exponent <= form.largest:
        found += [2.0**exponent * (1 + k / steps) for k in range(steps)]
        exponent += 1
    return torch.tensor([v for v in subnormal + found if v <= form.largest])


def nearest(x, form, ties="even"):
    """The nearest number of the format, by looking at all of them."""
    numbers = numbers_of(form).double()
    size = x.double().abs().clamp(max=form.largest).nan_to_num(0.0)
    above = torch.searchsorted(numbers, size).clamp(1, len(numbers) - 1)
    low, high = numbers[above - 1], numbers[above]
    middle = (low + high) / 2
    take_high = (size > middle) | (
        (size == middle) & ((above % 2 == 0) if ties == "even" else (size > 0))
    )
    value = torch.where(take_high, high, low).float()
    return torch.where(x.isnan(), x, torch.copysign(value, x))


def drawn_form():
    """A format that nobody can have in a table."""
    m, depth, width, short = (int(torch.randint(*ends, ())) for ends in DRAWN)
    return probes.Form(m, -depth, 2.0 ** (width - depth) * (2 - short / 2**m))


def forms():
    form = drawn_form()
    name = f"m = {form.mantissa_bits}, from 2^{form.smallest_exponent}, largest {form.largest:g}"
    return {**FORMS, name: form}


def scales(x, form, tile, amax=None, magnitude=True, adjusted=lambda scale: scale):
    """(R, K): each element's, tile by tile, in a loop."""
    rows, columns = tile or x.shape
    result = torch.ones_like(x)
    for i, r in enumerate(range(0, x.shape[0], rows)):
        for j, c in enumerate(range(0, x.shape[1], columns)):
            part = x[r : r + rows, c : c + columns]
            largest = (part.abs() if magnitude else part).max() if amax is None else amax[i, j]
            if largest > 0:
                result[r : r + rows, c : c + columns] = adjusted(largest / form.largest)
    return result


def tiled(x, form, tile, amax=None, **mistake):
    scale = scales(x, form, tile, amax, **mistake)
    return nearest(x / scale, form) * scale


def padded(x, tile, value=0.0):
    edge = (0, -x.shape[1] % tile[1], 0, -x.shape[0] % tile[0])
    return torch.nn.functional.pad(x, edge, value=value)


def cut(result, x):
    return result[: x.shape[0], : x.shape[1]]


def reshaped(x, form, tile):
    """What `reshape(-1, r * c)` takes for tiles: r * c neighbours in memory."""
    full = padded(x, tile)
    flat = tiled(full.reshape(-1, tile[0] * tile[1]), form, (1, tile[0] * tile[1]))
    return cut(flat.reshape(full.shape), x)


def whole_tiles_only(x, form, tile, edge):
    """What is left where the tiles that stand over the edge are passed over."""
    rows, columns = (size - size % side for size, side in zip(x.shape, tile))
    result = edge.clone()
    if rows and columns:
        result[:rows, :columns] = tiled(x[:rows, :columns], form, tile)
    return result


class TestLossScaler(Exercise):
    """Dynamic loss scaling"""

    name = "LossScaler"
    reference = "minitrain.precision.loss_scaling:LossScaler"
    hidden = HIDDEN

    @check(points=4, title="every gradient is divided by the scale, in place, and none overlooked")
    def test_divides(self, submission):
        large = torch.full((4,), 3e38)
        cases = [
            ([torch.randn(3, 5).double(), None, torch.randn(7).double()], 3.0),
            ([torch.randn(()), torch.randn(2, 3, 4), None, torch.randn(0), torch.randn(7)], 2.0**16),
            ([torch.randn(5).half(), torch.randn(2, 2).bfloat16()], 8.0),
            ([torch.tensor([1.0, torch.inf]), torch.randn(3), torch.randn(4)], 16.0),
            ([torch.randn(3), torch.tensor([[1.0, -torch.inf], [2.0, 3.0]])], 4.0),
            ([large, large], 1.0),
        ]  # fmt: skip
        words = (
            "one gradient here has no numbers at all, and so no largest one. Ask `isfinite()` of the "
            "numbers themselves: a largest number does not show -inf either"
        )
        with expect.because({("(): Expected reduction dim", "numel() == 0"): words}):
            found = submission.run(probes.unscaled, cases)
        for (given, scale), got in zip(cases, found):
            self.divided([g for g in given if g is not None], scale, got)

    def divided(self, given, scale, got):
        are_finite = all(gradient.isfinite().all() for gradient in given)
        expect.equal(
            [gradient for gradient in got["gradients"] if gradient is not None],
            [gradient / scale for gradient in given],
            what=f"{len(given)} gradients, scale {scale:g}",
            hints=[
                (given, "that is as it was: divide each in place, `p.grad /= self.scale`"),
                ([g * scale for g in given], "that is multiplied: the loss was, so divide"),
                ([g / scale**2 for g in given], "that is divided twice"),
                *[
                    ([g / scale for g in given[:n]] + given[n:], "whatever is found, every gradient is divided, those behind it too")
                    for n in range(1, len(given))
                ],
            ],
        )  # fmt: skip
        expect.that(
            all(got["in_place"]),
            "`p.grad` is a new tensor: all gradients twice in memory, and who holds the old ones has "
            "them undivided. Divide in place, `p.grad /= self.scale`",
        )
        expect.that(
            bool(got["finite"]) == are_finite,
            f"unscale returned {got['finite']!r}, and {'all' if are_finite else 'not all'} gradients are "
            "finite (3e38 is): look at every gradient, for inf and for nan, and ask `isfinite()` of "
            "the numbers themselves, not of a sum or norm. (`parameters` is a generator)",
        )

    @check(points=5, title="one rank's inf or nan is found by all ranks (2 and 3)")
    def test_agreed(self, submission):
        fine = torch.ones(2, 3)
        for ranks, poison in [(2, torch.inf), (3, torch.nan)]:
            bad = fine.clone()
            bad[1, 2] = poison
            steps = [
                [[fine, fine]] * ranks,
                [[fine, fine]] * (ranks - 1) + [[bad, fine]],
                [[fine, bad]] * ranks,
                [[fine, fine]] * ranks,
                [[fine, fine]] * (ranks - 1) + [[fine, bad]],
                [[None, fine]] + [[bad, None]] * (ranks - 1),
                [[None, None]] + [[bad, fine]] * (ranks - 1),
                [[None, None]] + [[fine, fine]] * (ranks - 1),
            ]
            answers = self.launch(submission, steps, ranks)
            flags = [[bool(answer) for answer in own] for own in answers]
            want = [number in (0, 3, 7) for number in range(len(steps))]
            last = flags[-1]
            words = expect.first(
                [
                    (flags == [[not w for w in want]] * ranks, "every answer is the wrong way round: unscale returns True where all gradients are finite"),
                    (last[1] and last[4] and not last[2], "a sum over ranks of what is *right* stays above 0: add up what is wrong, and nothing wrong is 0"),
                    (last[1] or last[2], f"look at every gradient, for inf and for nan: here one holds {poison}"),
                    (True, f"of step 2 only rank {ranks - 1} has {poison}. One rank would step, another not: add up over ranks what was found, before answering, and begin at 0 in each step"),
                ]
            )  # fmt: skip
            hints = [(own, words) for own in flags]
            for rank, own in enumerate(flags):
                expect.equal(own, want, what=f"rank {rank} of {ranks}: its answers", hints=hints)

    @check(points=2, title="ranks agree in one message of one number, in every step")
    def test_message(self, submission):
        fine = [torch.ones(50), torch.ones(3)]
        results = self.launch(submission, [[fine] * 2] * 3, 2)
        for rank, trace in enumerate(results.traces):
            sizes = [op.payload_bytes for op in trace.select("all_reduce")]
            expect.that(
                len(sizes) == 3 and max(sizes) <= 8,
                f"rank {rank}: 3 steps made all-reduces of {sizes} bytes, expected 3 of at most 8: one number says "
                "whether anything was found in any gradient, and is sent in every step, found or not",
            )

    def launch(self, submission, steps, ranks):
        words = (
            "every rank must join the all-reduce in every step, once, whatever it found and however many of "
            "its parameters have a gradient, also where none of its parameters has a gradient"
        )
        with expect.because({expect.HANGS: words}):
            return submission.launch(probes.agreed, steps, ranks=ranks, timeout=5)

    FACTORS = ("self.scale *= self.backoff", "self.scale *= 0.5", "* self.growth", "* 2.0")
    ANEW = "self.scale * self.growth, 0"
    COUNT = "self.finite_steps + 1 if finite else 0"
    MISTAKES = (
        ((COUNT, "self.finite_steps + finite"), "an overflow must set the count of good steps back to 0, `interval` of them in a row are needed"),
        ((COUNT, "self.finite_steps + 1 if not finite else 0", "if not finite:", "if finite:"), "that grows after an overflow: the flag says *finite*"),
        (("self.finite_steps == self.interval", "self.finite_steps >= self.interval", ANEW, ANEW[:-1] + "self.finite_steps"), "the count must start at 0 again when the scale has grown"),
        (("self.finite_steps == self.interval", "self.finite_steps >= self.interval", ANEW, ANEW[:-1] + "1"), "each growth after the first is a step early: the count starts at 0 again when the scale has grown, not at 1"),
        (("self.finite_steps == self.interval", "self.finite_steps == self.interval + 1"), "that grows a step late: after `interval` good steps, not after one more"),
        (FACTORS, "that is with 2 and 0.5: take self.growth and self.backoff"),
        (("self.scale *= self.backoff", "self.scale = max(1.0, self.scale * self.backoff)"), "that never falls below 1: it falls as far as it must"),
    )  # fmt: skip

    @check(
        points=3, title="the scale falls after an overflow and grows after `interval` good steps"
    )
    def test_update(self, submission):
        flags = [True, True, False, True, True, True, True, True, True, False, False, True]
        drawn = (torch.rand(len(flags)) < 0.8).tolist()
        cases = [
            ({"scale": 64.0, "growth": 4.0, "backoff": 0.25, "interval": 3}, flags),
            ({"scale": 2.0**40, "growth": 2.0, "backoff": 0.5, "interval": 1}, drawn),
            ({"scale": 1.0, "growth": 8.0, "backoff": 0.5, "interval": 2}, [False, *drawn[1:]]),
        ]
        got = submission.run(probes.scales_after, cases)
        after = lambda scaler: probes.scales_after(scaler, cases)  # noqa: E731
        told = "; ".join(f"{options} after {flags}" for options, flags in cases)
        hints = hints_of(self.reference, self.MISTAKES, after)
        what = f"scales of three scalers that are alive at once ({told})"
        expect.equal(got, after(variant(self.reference)), what=what, hints=hints)


class TestMasterWeights(Exercise):
    """BF16 weights with float32 masters"""

    name = "MasterWeights"
    reference = "minitrain.precision.master_weights:MasterWeights"
    hidden = HIDDEN

    def case(self):
        """Starts, and gradients of 30 steps: 2 is frozen, 3 has none from step 11 on, 4 before."""
        starts = [torch.randn(shape).to(BF16) for shape in ((3, 5), (7,), (2,), (2, 1, 3), ())]
        starts[2] = torch.tensor([1.0, -2.0], dtype=BF16)  # where BF16 would see 30 decays of 1e-4
        steps = [[torch.randn_like(start) for start in starts] for _ in range(30)]
        for number, gradients in enumerate(steps):
            gradients[2] = None
            gradients[3 if number >= 10 else 4] = None
        return starts, steps

    def oracle(self, rule, starts, steps, read_back=False, instead=None, slipped=False, cast=None):
        """The same in float32, rounded once; or masters read back from their weights, or given
        something for no gradient, or one of the second group's in the first, or rounded otherwise."""
        weights = [torch.nn.Parameter(start.float()) for start in starts]
        optimizer = probes.optimizer_of(rule, weights)
        if slipped:
            first, second = optimizer.param_groups
            first["params"].append(second["params"].pop(0))
        for gradients in steps:
            for weight, gradient in zip(weights, gradients):
                none = instead and instead(weight)
                weight.grad = none if gradient is None else gradient.float()
            probes.cool(optimizer)
            optimizer.step()
            for weight in weights:
                weight.data = weight.data.to(BF16).float() if read_back else weight.data
        return [(cast or (lambda master: master.to(BF16)))(w.detach()) for w in weights]

    @check(points=4, title="after 30 steps each weight is the float32 optimizer's, rounded once")
    def test_weights(self, submission):
        cases = [(rule, *self.case()) for rule in probes.rules()]
        expect.in_a_row(
            partial(self.are_masters, submission), [*cases, (*cases[0], True)], MASTERS_IN_SELF
        )

    def are_masters(self, submission, cases):
        for (rule, starts, steps, *are_set), got in zip(
            cases, submission.run(probes.mastered, cases)
        ):
            words = "step() has changed a weight's own gradient, or cleared it: it is the caller's"
            expect.that(got["gradients"], words)
            taken = f"in {len(steps)} calls of step() the optimizer has made {got['steps']} steps"
            expect.that(got["steps"] <= len(steps), f"{taken}: one in each call")
            want = self.oracle(rule, starts, steps)
            what = f"{rule}: weights, of which 2 is frozen, 3 and 4 are in a second group"
            hints = self.mistakes(rule, starts, steps, want)
            if are_set:  # the rest was right in a run that differs in nothing else
                what += ", set to 0 from outside before step 12"
                hints = [(got["weights"], "numbers go from masters to weights, never back")]
            expect.identical(got["weights"], want, what=what, hints=hints)

    def mistakes(self, rule, starts, steps, want):
        oracle = partial(self.oracle, rule, starts, steps)
        cut = lambda m: (m.view(torch.int32) & -(2**16)).view(torch.float32).to(BF16)  # noqa: E731
        return [
            (starts, "it never moved: the optimizer moves the master, then copy the master back into the weight"),
            ([*want[:3], *starts[3:]], "the second group's never moved: go through the masters and weights of all groups"),
            (oracle(cast=cut), "those are masters without their last 16 bits, nearer to 0: round to the *nearest*, as weight.copy_(master) does"),
            (oracle(instead=torch.zeros_like), "a master was given a gradient of zeros, and so moved on: no gradient is None, and the optimizer passes over it"),
            (oracle(instead=lambda weight: weight.grad), "a master had the last gradient again: where the weight has none the master's is None"),
            (oracle(slipped=True), "one has the first group's learning rate, and is in the second: each group holds the masters of its own weights, in their order, one for a frozen weight too"),
            (oracle(read_back=True), "a master was read back from its rounded weight: small steps get lost. It is copied once, in __init__"),
        ]  # fmt: skip

    @check(points=3, title="400 steps that BF16 cannot see add up")
    def test_small_steps(self, submission):
        starts = [torch.ones(3, dtype=BF16), torch.full((2,), 4.0, dtype=BF16)]
        steps = [[torch.full((3,), 1 / 64, dtype=BF16), torch.ones(2, dtype=BF16)]] * 400
        case = ("SGD with momentum", starts, steps)
        (got,) = submission.run(probes.mastered, [case])
        words = (
            "it stalled: each step was rounded away. The optimizer must move the float32 master, which "
            "is never read back from the weight"
        )
        what = "weights after 400 small steps"
        expect.identical(got["weights"], self.oracle(*case), what=what, hints=[(starts, words)])

    @check(
        points=3, title="masters and moments are float32, 12 bytes a parameter, and no gradients"
    )
    def test_held(self, submission):
        starts = [torch.randn(n).to(BF16) for n in (15, 7, 2)]
        steps = [[torch.randn_like(start) for start in starts] for _ in range(2)]
        (got,) = submission.run(probes.mastered, [("AdamW", starts, steps)])
        dtypes = {weight.dtype for weight in got["weights"]}
        expect.that(dtypes == {BF16}, f"the weights are {dtypes}: the model's own stay bfloat16")
        sizes = [start.numel() for start in starts]
        expect.that(
            [m[:2] for m in got["masters"]] == [["torch.float32", size] for size in sizes],
            f"masters (dtype, numbers): {[m[:2] for m in got['masters']]}, expected float32 of {sizes}",
        )
        expect.that(
            set(got["state"]) == {"torch.float32"} and got["state_bytes"] == 8 * sum(sizes),
            f"the optimizer's state is {sorted(set(got['state']))} of {got['state_bytes']} bytes, expected "
            f"float32 of {8 * sum(sizes)}: it must move the masters, of all groups",
        )
        expect.that(
            all(m[2] for m in got["masters"]),
            "a master still holds its float32 gradient after step(): 4 bytes a parameter for nothing. "
            "Set master.grad = None",
        )


ALIKE = (
    "10,000 equal rows were all rounded in the same way: draw for each number, with noise of x's whole "
    "shape"
)


class TestStochasticRound(Exercise):
    """Rounding by chance"""

    name = "stochastic_round"
    reference = "minitrain.precision.master_weights:stochastic_round"
    hidden = HIDDEN

    def rounded(self, submission, calls):
        """Results of calls in a row, and whether the global generator moved in each."""
        got = submission.run(probes.rounded, calls)
        for (x, *_), call in zip(calls, got["calls"]):
            self.expect_kind(call["out"], x)
        expect.left_alone(got["calls"], calls, ["x"])
        return [call["out"] for call in got["calls"]], got["moved"]

    @check(points=3, title="the mean of 20,000 roundings is the number itself, each by itself")
    def test_mean(self, submission):
        numbers = torch.tensor([1.001, 1.0068, -1.002, 3.14159, -0.3, 1e-5])
        part, half = numbers.repeat(10000, 1), torch.full((64, 64), 1 + 2.0**-8)
        calls = [(part, None, None), (part, None, None), (half, "a", 5)]
        (*halves, square), _ = self.rounded(submission, calls)
        self.expect_mean(halves, numbers)
        expect.that(
            not torch.equal(*halves),
            "twice without a generator, and 60,000 roundings are the same: without one, draw from torch's own, "
            "which goes on from call to call",
        )
        expect.that((square != square[:1]).any() and (square != square[:, :1]).any(), ALIKE)
        self.expect_rare(submission)

    def expect_rare(self, submission):
        """Of 2^20 numbers that lie the smallest part above their lower neighbour 16 go up: none by
        coarser noise."""
        whole = torch.randn(2**20).to(BF16).float()
        x = (whole.view(torch.int32) + 1).view(torch.float32)
        up = int((submission.run(probes.called, x).float() != whole).sum())
        expect.that(
            0 < up <= 50,
            f"of {len(x):,} numbers a 65,536th of the way up {up:,} went up, about 16 should: the noise is a number "
            "from 0 to 2^16 - 1, and each is as likely",
        )

    def expect_mean(self, halves, numbers):
        result = torch.cat(halves)
        x = numbers.repeat(len(result), 1)
        below, _ = self.neighbours(numbers)
        gap = torch.ldexp(torch.ones(6), torch.frexp(numbers).exponent - 8)
        part = (numbers - below).abs() / gap
        spread = gap * (part * (1 - part) / len(x)).sqrt()
        words = "that is rounding to nearest, the same each time: add noise before the bits are cut, another for each element"
        expect.that(not (result == x.to(BF16)).all(), words)
        words = "that always cuts, toward 0: add noise before clearing the bits"
        expect.that(not (result == below.to(BF16)).all(), words)
        expect.that(not all((half == half[:1]).all() for half in halves), ALIKE)
        mean = result.double().mean(dim=0)
        for value, got, wide in zip(numbers.tolist(), mean.tolist(), spread.tolist()):
            expect.that(
                abs(got - value) <= 6 * wide,
                f"the mean of {len(x):,} roundings of {value:.6g} is {got:.6g}, {abs(got - value) / wide:.0f} standard "
                "errors off: up with the probability of the part that is cut, which noise in *all* of the 16 bits "
                "gives, and cut afterwards, not rounded again",
            )

    @check(points=3, title="any shape; always a neighbour; what BF16 has, inf and nan stay")
    def test_neighbours(self, submission):
        x = torch.randn(3, 5, 7) * torch.logspace(-20, 20, 7)
        shapes = [x, x[0, 0, 3], x[:0], x[1, :, :1], torch.tensor([1e-40, -1e-40])]
        results, _ = self.rounded(submission, [(x, "a", 1) for x in shapes])
        for x, result in zip(shapes, results):
            low, high = self.neighbours(x)
            near = (result.float() == low) | (result.float() == high)
            expect.that(
                near.all(),
                f"{int((~near).sum())} of {x.numel()} results are neither of the two neighbours in BF16: noise under "
                "2^16, and the last 16 bits cleared before the cast, which would round once more",
            )
        whole = torch.randn(2**20).to(BF16).float()  # so many that noise of 2^16 is drawn for some
        for x in (whole, *(torch.full((50,), v) for v in (0.0, torch.inf, -torch.inf, torch.nan))):
            result = submission.run(probes.called, x)
            self.expect_kind(result, x)
            words = "noise from 0 to 2^16 - 1 keeps what has no bits to cut, 2^16 does not; none takes a number toward 0"
            hints = [(result.float(), words)]
            what = "numbers that BF16 has, which must stay"
            expect.identical(result.float(), x, what=what, hints=hints)

    @check(points=2, title="it draws from the generator that it is given, and from no other")
    def test_generator(self, submission):
        x = torch.randn(500)
        calls = [(x, "a", 3), (x, "b", 3), (x, "c", 4), (x, "a", 3)]
        (one, same, other, after), moved = self.rounded(submission, calls)
        expect.that(
            not any(moved),
            "the global generator has moved: give `generator=generator` to what draws, or ranks and resumed runs "
            "round differently",
        )
        expect.identical(one, same, what="twice with the same seed")
        words = "two seeds gave the same 500 roundings: the noise must come from the generator"
        expect.that(not torch.equal(one, other), words)
        expect.that(
            not torch.equal(one, after),
            "twice from one generator, and 500 roundings are the same: draw from the generator itself, which goes on, "
            "not from a copy, and never set its seed",
        )

    def neighbours(self, x):
        low = (x.view(torch.int32) & -(2**16)).view(torch.float32)
        high = ((x.view(torch.int32) & -(2**16)) + 2**16).view(torch.float32)
        return low, torch.where(low == x, low, high)

    def expect_kind(self, result, x):
        expect.that(
            isinstance(result, torch.Tensor) and result.dtype == BF16 and result.shape == x.shape,
            f"got {expect.show(result)}, expected a bfloat16 tensor of shape {tuple(x.shape)}",
        )


WIDE = (
    "the steps are twice too wide: 2^e must not be above |x|, and a step is 2^(e - m). (The exponent of "
    "`torch.frexp` counts from 1/2: it is e + 1)"
)
CLAMP = ".clamp(-form.largest, form.largest)"
STEPS = "(x / step).round_()"
MANTISSA = "2.0**-form.mantissa_bits"
RETURN = f"return {STEPS}.mul_(step)"
ROUNDED = [
    ((STEPS, "((x / step).abs() + 0.5).floor().copysign(x)"), "ties go to the even neighbour: torch.round does so"),
    ((STEPS, "(x / step + 0.5).floor()"), "ties go up, always: they go to the even neighbour, as in torch.round"),
    ((STEPS, "(x / step).trunc()"), "that is cut, toward 0: x / step is rounded to the *nearest* whole number"),
    ((STEPS, "(x / step).floor()"), "that is rounded down, always: x / step is rounded to the *nearest* whole number"),
    ((RETURN, "return x.to(torch.float8_e4m3fn).float()"), "that is what a cast to torch.float8_e4m3fn gives: take this format's own numbers"),
    ((RETURN, "return x.to(torch.float8_e5m2).float()"), "that is what a cast to torch.float8_e5m2 gives: take this format's own numbers"),
    ((CLAMP, "", RETURN, "return x.to(torch.float8_e4m3fn).float()"), "that is what a cast to torch.float8_e4m3fn gives: take this format's own numbers"),
    ((RETURN, "return x"), "that is x itself: nothing was rounded, or in steps finer than 2^(e - m)"),
    (("power.clamp_(min=2.0**form.smallest_exponent)", "power.clamp_(min=1e-38)"), "below the smallest normal number the steps must not shrink further: clamp the exponent"),
    (("power.clamp_(", "power.mul_(2).clamp_("), WIDE),
    ((MANTISSA, "2.0 ** (1 - form.mantissa_bits)"), WIDE),
    ((MANTISSA, "2.0 ** (-1 - form.mantissa_bits)"), "the steps are half as wide, finer than they must be: 2^(e - m)"),
    ((CLAMP, ""), "that is above the largest: clamp x to ±form.largest first"),
    ((CLAMP, ".clamp(max=form.largest)"), "below -largest too: clamp x to ±form.largest"),
    ((STEPS, "torch.where(x.abs() < 2.0**form.smallest_exponent, 0.0, x / step).round_()"),
     "all below the smallest normal number is 0: the format has numbers there, subnormal ones, in the steps that it has just above"),
    (("x.float().clamp", "x.to(torch.bfloat16).float().clamp"), "that is rounded twice, to bfloat16 first: round x itself"),
    (("x.float().clamp", "x.to(torch.float16).float().clamp"), "that is rounded twice, to float16 first: round x itself"),
    (("x.float()", "x.float().nan_to_num(form.largest, torch.inf, -torch.inf)"), "nan stays nan: it has become the largest number"),
    (("x.float()", "x.float().nan_to_num(0.0, torch.inf, -torch.inf)"), "nan stays nan: it has become 0"),
]  # fmt: skip


class TestRoundTo(Exercise):
    """The cast to a small float"""

    name = "round_to"
    reference = "minitrain.precision.formats:round_to"
    hidden = HIDDEN

    def compare(self, submission, cases, what):
        """cases: (name, form, x). Bit for bit, with likely mistakes in words."""
        expect.in_a_row(partial(self.are_nearest, submission, what), cases)

    def are_nearest(self, submission, what, cases):
        calls = [(x, astuple(form)) for _, form, x in cases]
        got = submission.run(probes.in_formats, calls)
        for (name, form, x), call in zip(cases, got):
            hints = hints_of(self.reference, ROUNDED, lambda wrong, x=x, form=form: wrong(x, form))
            expect.identical(call["out"], nearest(x, form), what=f"{name}, {what}", hints=hints)
        expect.left_alone(got, calls, ["x"])

    @check(
        points=4, title="every number of E4M3, E5M2, E2M1 and two more stays, subnormal ones too"
    )
    def test_codes(self, submission):
        cases = []
        for name, form in forms().items():
            numbers = numbers_of(form)
            cases.append((name, form, torch.cat([numbers, -numbers[1:]])))
        self.compare(submission, cases, "its own numbers")

    @check(points=4, title="a tie goes to the even neighbour, and just beside it to the nearer")
    def test_ties(self, submission):
        ties, near = [], []
        for name, form in forms().items():
            numbers = numbers_of(form)
            middle = (numbers[1:] + numbers[:-1]) / 2
            beside = [torch.nextafter(middle, torch.tensor(v)) for v in (0.0, torch.inf)]
            ties.append((name, form, torch.cat([middle, -middle])))
            near.append((name, form, torch.cat([*beside, *(-b for b in beside)])))
        self.compare(submission, ties, "numbers halfway between two of its own")
        self.compare(submission, near, "numbers just beside the middle of two of its own")

    @check(points=2, title="too large becomes the largest, never inf or nan; nan stays nan")
    def test_limits(self, submission):
        large, missing = [], []
        for name, form in forms().items():
            big = form.largest * torch.tensor([1.01, 1.2, 2.0, 1e9, torch.inf])
            large.append((name, form, torch.cat([big, -big, torch.tensor([0.0, -0.0, 1e-40])])))
            missing.append((name, form, torch.tensor([torch.nan, -torch.nan, 1.0])))
        self.compare(submission, large, "numbers above its largest, and 0")
        self.compare(submission, missing, "nan, nan and 1")

    @check(points=2, title="2,000 numbers from 2^-30 to 2^20, bit for bit, in any shape")
    def test_random(self, submission):
        x = torch.randn(2000).sign() * torch.exp2(50 * torch.rand(2000) - 30)
        cases = [(name, form, x.clone()) for name, form in forms().items()]
        x = torch.randn(3, 5, 7)
        shapes = [x, x[0, 0, 0], x[:0], x[0, 0, :1], 2 * x]
        cases += [(f"E2M1, shape {tuple(s.shape)}", FORMS["E2M1"], s) for s in shapes]
        self.compare(submission, cases, "numbers of all sizes")


POWER = "the scale was rounded {} to a power of two: here it is amax / form.largest itself"


class TestFakeQuantize(Exercise):
    """One scale, or one for each tile"""

    name = "fake_quantize"
    reference = "minitrain.precision.blocks:fake_quantize"
    hidden = HIDDEN

    def compare(self, submission, cases):
        """cases: (x, name of a form, tile, amax)."""
        expect.in_a_row(partial(self.are_quantized, submission), cases)

    def are_quantized(self, submission, cases):
        calls = [(x, astuple(FORMS[name]), tile, amax) for x, name, tile, amax in cases]
        results = submission.run(probes.quantized, calls)
        for (x, name, tile, amax), call in zip(cases, results):
            form = FORMS[name]
            want, scale = tiled(x, form, tile, amax), scales(x, form, tile, amax)
            what = f"{tuple(x.shape)} in {name}, {f'tiles of {tile}' if tile else 'one scale'}"
            what += "" if amax is None else f", amax = {amax.tolist()}"
            hints = [*self.of_tiles(x, form, tile, amax), *self.mistakes(x, form, tile, amax)]
            expect.equal(call["out"], want, what=what, hints=hints)
            hints = [(value / scale, words) for value, words in hints if value.shape == scale.shape]
            what += ", in units of the scale"
            expect.equal(call["out"] / scale, want / scale, what=what, hints=hints)
        expect.left_alone(results, calls, ["x", "form", "tile", "amax"])

    def mistakes(self, x, form, tile, amax):
        adjusted = partial(tiled, x, form, tile, amax)
        least = torch.finfo(torch.float32).tiny
        ups, downs = (
            adjusted(adjusted=lambda scale, whole=whole: torch.exp2(whole(torch.log2(scale))))
            for whole in (torch.ceil, torch.floor)
        )
        return [
            (x / 0, "0 / 0 is nan: a tile of zeros has scale 1"),
            (torch.zeros_like(x), "all is 0: small numbers need a scale of their size, however small; only a tile of zeros has scale 1"),
            (nearest(x / scales(x, form, tile, amax), form), "multiply by the scale again after rounding"),
            (nearest(x, form), "that is without a scale, or with a power of two: the scale is amax / form.largest itself"),
            (adjusted(magnitude=False), "the largest *magnitude* sets the scale, of negative numbers too: `.abs()` first"),
            (adjusted(adjusted=lambda scale: scale.clamp(min=least)), "the scale stops at float32's smallest normal number: it is amax / form.largest, however small"),
            (ups, POWER.format("up")),
            (downs, POWER.format("down")),
            (torch.where(x == 0, torch.nan, x.sign() * x.abs().max()), "the reciprocal of a small scale is infinite: divide by amax / form.largest itself"),
            (tiled(x, form, (1, x.shape[1])), "that is one scale a row: with tile=None there is one for all of x"),
            (tiled(x, form, tile), "that is scaled by x's own largest: take the given amax, whichever of the two is larger"),
        ]  # fmt: skip

    def of_tiles(self, x, form, tile, amax):
        if tile is None:
            return []
        over = "a tile may stand over the edge: pad with zeros, and cut the padding off at the end"
        return [
            (tiled(x, form, None), "that is one scale for all: one for each tile"),
            (tiled(x, form, tile[::-1]), "those are tiles of (c, r): r counts rows, c columns"),
            (reshaped(x, form, tile), "`reshape(-1, r * c)` takes r * c neighbours of one row: a tile is r rows of c columns"),
            (cut(tiled(padded(x, tile, 1.0), form, tile), x), "the padding has set the scale of the last tiles: pad with zeros"),
            (tiled(padded(x, tile), form, tile), "cut the padding off: [:R, :K]"),
            (whole_tiles_only(x, form, tile, x), f"at the edge is x itself: {over}"),
            (whole_tiles_only(x, form, tile, 0 * x), f"at the edge all is 0: {over}"),
        ]  # fmt: skip

    @check(points=2, title="one scale for all: its largest number becomes the format's")
    def test_whole(self, submission):
        cases = []
        for shape, name, size in [
            ((5, 7), "E4M3", 1e-3),
            ((3, 64), "E5M2", 1e-25),
            ((4, 9), "E2M1", 1.0),
            ((1, 3), "E3M2", 1e20),
            ((4, 9), "E2M1", 30.0),
        ]:
            x = torch.randn(shape) * size
            x[0, 1] = -x.abs().max() * 2  # the largest magnitude is a negative number's
            cases.append((x, name, None, None))
        tiny = torch.randn(4, 6) * 1e-37  # 1 / scale is no float32 here, the scale is
        tiny[1, 2] = 0.0
        cases += [(tiny, "E4M3", None, None), (torch.tensor([[-0.7]]), "E2M1", None, None)]
        self.compare(submission, cases)

    @check(points=3, title="one scale a tile, also where tiles do not divide the matrix")
    def test_tiles(self, submission):
        self.compare(submission, [(torch.zeros(2, 8), "E4M3", (1, 4), None)])
        cases = []
        for shape, tile, name in [
            ((4, 64), (1, 32), "E4M3"),
            ((6, 10), (4, 3), "E2M1"),
            ((5, 8), (2, 4), "E3M2"),
            ((4, 7), (2, 4), "E3M2"),
            ((3, 5), (8, 32), "E2M1"),
            ((6, 10), (4, 3), "E2M1"),
        ]:
            x = torch.randn(shape) * torch.logspace(-4, -1, shape[1])
            cases.append((x, name, tile, None))
        cases[0][0][0, :32] = 0.0
        self.compare(submission, cases)

    @check(points=2, title="an outlier in one tile changes no bit of another")
    def test_outlier(self, submission):
        x = torch.randn(4, 64)
        row, column = int(torch.randint(4, ())), int(torch.randint(64, ()))
        planted = x.clone()
        planted[row, column] = 1e5
        form, tile = FORMS["E4M3"], (1, 16)
        calls = [(v, astuple(form), tile) for v in (x, planted)]
        one, other = (call["out"] for call in submission.run(probes.in_formats, calls))
        elsewhere = torch.ones_like(x, dtype=torch.bool)
        elsewhere[row, column // 16 * 16 : (column // 16 + 1) * 16] = False
        expect.that(
            one is not None and torch.equal(one[elsewhere], other[elsewhere]),
            "numbers outside the outlier's tile changed: each tile's scale comes from its own largest magnitude alone",
        )
        expect.equal(one, tiled(x, form, tile), what="(4, 64) in E4M3, tiles of (1, 16)")

    @check(points=1, title="an amax that is given sets the scale: larger numbers are clamped")
    def test_given(self, submission):
        quarters = torch.tensor([[0.5, 2.0], [4.0, 1.0]])
        cases = [
            (torch.randn(4, 8), "E4M3", None, torch.full((1, 1), 0.5)),
            (torch.randn(4, 8), "E4M3", (2, 4), quarters),
            (torch.randn(3, 7), "E4M3", (2, 4), quarters),
            (torch.zeros(2, 3), "E4M3", None, torch.zeros(1, 1)),
        ]
        self.compare(submission, cases)


PAST = "past = self.past[:, role].amax()"
TAKEN = "torch.where(past > 0, past, now)"
NOTED = "torch.maximum(self.seen.get(role, now), now)"
ROLLED = "rolled = torch.cat([seen.unsqueeze(0), self.past[:-1]])"
MOVED = "torch.where(seen >= 0, rolled, self.past)"
ZERO_RAN = "0 was seen: it ran, and takes a row. Only -1 says that it did not"
HISTORIES = [
    ((TAKEN, "now"), "those are the current ones: take the past's, if any"),
    ((TAKEN, "past"), "a past of zeros is none: scale by `now`"),
    ((TAKEN, "torch.where(self.past.amax() > 0, past, now)"), "each role has a past of its own: it is all 0 when it first runs, whatever the others have seen"),
    ((TAKEN, "torch.where(self.past[0, role] > 0, past, now)"), "there is a past where any of its H rows is not 0, though the newest is: scale by the largest of all H"),
    ((TAKEN, "torch.maximum(past, now)"), "the current one is not part of the past yet"),
    ((TAKEN, f"{TAKEN} if record else now"), "evaluation scales by the past, too; record=False says no more than not to note"),
    ((PAST, "past = self.past[0, role]"), "that is the newest alone: the largest of all H"),
    ((PAST, "past = self.past.amax()"), "each role has its own column of `past`"),
    ((NOTED, "now"), "that is the last microbatch's: 50 would be clamped. Keep the maximum"),
    ((NOTED, "self.seen.get(role, now)"), "that is the first microbatch's: keep the maximum"),
    ((NOTED, f"{NOTED} if now and self.seen.get(role) else now"), "0 has taken the place of 9: it is smaller, keep the maximum"),
    ((ROLLED, "rolled = torch.cat([torch.maximum(seen, self.past[0] * (len(self.past) == 1)).unsqueeze(0), self.past[:-1]])"), "the oldest entry must go after H steps, with H = 1 here after one"),
    ((NOTED, "torch.maximum(self.seen.get(role, self.past[0, role]), now)"), "what was seen then is forgotten after a step, and the past is not seen again"),
    (("if record:", "if True:"), "what was seen with record=False leaves no trace"),
    (("torch.zeros(length, 3", "torch.zeros(2, 3"), "the oldest entry must go after H steps, with H = 1 here after one"),
    ((ROLLED, "rolled = torch.cat([torch.maximum(seen, self.past[0]).unsqueeze(0), self.past[1:]])"), "there is no second row: a step moves the column down by a row, then fills row 0"),
    ((MOVED, "rolled"), "-1 says that it did not run: leave it alone"),
    ((MOVED, "rolled.clamp(min=0)"), "what did not run was rolled: leave it alone, a row of 0 is one of a step that saw zeros"),
    ((MOVED, "torch.where((seen >= 0).all(), rolled, self.past)"), "each column that ran moves, whatever the others did"),
    ((MOVED, "torch.where(seen > 0, rolled, self.past)"), ZERO_RAN),
]  # fmt: skip


class TestAmaxHistory(Exercise):
    """Delayed scaling"""

    name = "AmaxHistory"
    reference = "minitrain.precision.delayed_scaling:AmaxHistory"
    hidden = HIDDEN

    def play(self, submission, *cases):
        """cases: (length, events), all histories alive at once."""
        got = submission.run(probes.with_histories, cases)
        play = lambda history: probes.with_histories(history, cases)  # noqa: E731
        wrong = list(hints_of(self.reference, HISTORIES, play))
        for number, (want, own) in enumerate(zip(play(variant(self.reference)), got)):
            told = "H = {}, {}, beside a second history: ".format(*cases[number])
            for name, what in (("told", "magnitudes to scale by"), ("past", "`past` at the end")):
                hints = [(every[number][name], words) for every, words in wrong]
                expect.equal(own[name], want[name], what=told + what, hints=hints)
            expect.that(
                own["kept"],
                "a tensor that amax was given, or has returned, was changed by a later call: make new "
                "tensors, and return none that is a part of `past`",
            )

    @check(points=3, title="it notes the largest of a step's microbatches")
    def test_microbatches(self, submission):
        events = [("amax", 0, now, True) for now in (3.0, 50.0, 7.0)]
        events += [("amax", 1, now) for now in (9.0, 0.0)]
        events += [("step",), ("amax", 0, 2.0, True), ("amax", 1, 0.0), ("amax", 1, 4.0), ("step",)]
        self.play(submission, (4, events), (2, [("amax", 0, 60.0, True), ("step",)]))

    @check(points=3, title="the scale is of the past, of its last H steps, or of now at first")
    def test_past(self, submission):
        events = []
        for now in (4.0, 9.0, 2.0, 1.0, 3.0):
            events += [("amax", 0, 100.0, True), ("amax", 2, now, True), ("step",)]
        newest = [step for now in (4.0, 9.0, 2.0, 1.0) for step in (("amax", 1, now), ("step",))]
        zeros = [step for now in (4.0, 0.0, 0.0, 5.0) for step in (("amax", 1, now), ("step",))]
        late = [("amax", 0, 7.0), ("step",), ("amax", 2, 3.0), ("step",), ("amax", 2, 5.0)]
        self.play(submission, (2, events), (1, newest), (2, zeros), (2, late))

    @check(points=2, title="evaluation leaves no trace, and what did not run stays")
    def test_idle(self, submission):
        events = [("amax", 0, 77.0, False)]  # evaluation before any step
        events += [("amax", role, now, True) for role, now in enumerate((5.0, 6.0, 3.0))]
        events += [("step",), ("amax", 0, 99.0, False), ("amax", 1, 7.0, True)]
        events += [("amax", 2, 0.0, True), ("step",)]  # a gradient of zeros ran, too
        events += [("step", [-1.0, 8.0, -1.0])]  # another rank saw column 1 alone
        self.play(submission, (3, events))


class TestUnderflow(Experiment):
    """What FP16 makes zero"""

    name = "underflow"
    rests_on = ("LossScaler",)

    @check(points=4, title="a larger scale loses less below, and more above")
    def test_order(self, table):
        rows = sorted(table, key=lambda row: row["scale"])
        expect.that(len(rows) >= 6, f"{len(rows)} scales: 6 or more are asked for")
        for one, next_one in pairwise(rows):
            expect.that(
                next_one["zero"] <= one["zero"] and next_one["infinite"] >= one["infinite"],
                f"from scale {one['scale']:g} to {next_one['scale']:g}: zero {one['zero']:.3f} to "
                f"{next_one['zero']:.3f}, infinite {one['infinite']:.3f} to {next_one['infinite']:.3f}. Multiply the "
                "same gradients by each scale",
            )

    @check(points=2, title="unscaled, most is lost; under some scale less than 1%")
    def test_lost(self, table):
        unscaled_row = min(table, key=lambda row: row["scale"])
        best = min(row["zero"] + row["infinite"] for row in table)
        expect.that(
            unscaled_row["zero"] > 0.5 and best < 0.01,
            f"scale {unscaled_row['scale']:g} loses {unscaled_row['zero']:.1%}, the best one {best:.1%}; "
            "expected more than half, and less than 1%",
        )


class TestStall(Experiment):
    """The update that BF16 cannot see"""

    name = "stall"
    rests_on = ("MasterWeights", "stochastic_round")

    @check(points=2, title="plain BF16 stands still where the step is under half of its spacing")
    def test_stall(self, table):
        for row in table:
            start, moved = row["start"], row["start"] - row["bf16"]
            half = 2.0 ** (int(torch.frexp(torch.tensor(start)).exponent) - 1 - 9)
            step = (start - row["exact"]) / 100
            expect.that(
                (moved == 0) == (step <= half),
                f"from {start:g}: plain BF16 moved by {moved:g}, its spacing below is {2 * half:g}, a step {step:g}",
            )

    @check(points=2, title="masters end at the exact value, rounded; by chance near it")
    def test_ends(self, table):
        for row in table:
            ulp = 2.0 ** (int(torch.frexp(torch.tensor(row["exact"])).exponent) - 8)
            expect.that(
                abs(row["master"] - row["exact"]) <= ulp,
                f"from {row['start']:g}: masters end at {row['master']:g}, exactly it is {row['exact']:g}",
            )
            # 100 roundings, each with a spread of at most half a spacing, in the mean of 1,000.
            spacing = 2.0 ** (int(torch.frexp(torch.tensor(row["start"])).exponent) - 8)
            bound = 6 * spacing / 2 * (100 / 1000) ** 0.5
            expect.that(
                abs(row["stochastic"] - row["exact"]) <= bound,
                f"from {row['start']:g}: the mean of 1,000 roundings by chance ends at {row['stochastic']:g}, more "
                f"than {bound:.2g} from {row['exact']:g}",
            )


class TestOutlier(Experiment):
    """What one outlier costs the others"""

    name = "outlier"
    rests_on = ("fake_quantize",)

    @check(points=2, title="block scales: not a bit of change in the other blocks")
    def test_block(self, table):
        rows = [row for row in table if row["scheme"] == "block" and row["block"] > 0]
        expect.that(rows, "there is no row of scheme 'block' beside block 0")
        for row in rows:
            expect.that(
                row["error_before"] == row["error_after"],
                f"block {row['block']}: error {row['error_before']:.3e} before, {row['error_after']:.3e} after an "
                "outlier in block 0, with scales of its own",
            )

    @check(points=2, title="one scale: the error of all others grows several times")
    def test_tensor(self, table):
        rows = [row for row in table if row["scheme"] == "tensor" and row["block"] > 0]
        expect.that(rows, "there is no row of scheme 'tensor' beside block 0")
        least = min(row["error_after"] / row["error_before"] for row in rows)
        expect.that(least > 3, f"with one scale the error grew {least:.2f} times: expected over 3")


def distances(table):
    """Held-out loss above the floor, by format."""
    rows = expect.rows(table, "format")
    names = ("FP32", "FP16", "FP16, scaled", "BF16", "BF16, master", "FP8, block", "FP4, block")
    return {name: rows[name]["loss"] - rows[name]["floor"] for name in names}


class TestFormats(Experiment):
    """The same model in eight formats"""

    name = "formats"
    rests_on = ("LossScaler", "MasterWeights", "fake_quantize", "AmaxHistory")

    @check(points=2, title="what is emulated says so")
    def test_emulated(self, table):
        for row in table:
            want = row["format"].startswith(("FP16", "FP8", "FP4"))
            expect.that(
                bool(row["emulated"]) == want,
                f"{row['format']}: emulated is {row['emulated']}; FP16, FP8 and FP4 are here, their speed says nothing",
            )

    @check(points=3, title="FP16 fails without loss scaling, and is FP32's equal with it")
    def test_scaling(self, table):
        above = distances(table)
        expect.that(
            not above["FP16"] < 2 * above["FP32"],
            f"FP16 without scaling ends {above['FP16']:.3f} above the floor, FP32 {above['FP32']:.3f}: it should fail",
        )
        expect.that(
            above["FP16, scaled"] < 1.05 * above["FP32"],
            f"FP16 with scaling ends {above['FP16, scaled']:.3f} above the floor, FP32 {above['FP32']:.3f}",
        )

    @check(points=3, title="masters keep what plain BF16 loses; FP8 in blocks stays near BF16")
    def test_order(self, table):
        above = distances(table)
        best = above["BF16, master"]
        expect.that(
            above["BF16"] > best,
            f"plain BF16 ends {above['BF16']:.3f} above the floor, with masters {best:.3f}",
        )
        # Eight seeds of these 100 steps: 0.0 to 1.2%, 0.5% in the mean. 2% leaves room for another machine.
        expect.that(
            above["FP8, block"] < 1.02 * best,
            f"FP8 in blocks ends {above['FP8, block']:.3f} above the floor, BF16 with masters {best:.3f}: expected "
            "within 2%",
        )
        expect.that(
            above["FP4, block"] > above["FP8, block"],
            f"FP4 ends {above['FP4, block']:.3f} above the floor, FP8 {above['FP8, block']:.3f}: four bits cost more",
        )


class TestMemory(Experiment):
    """What waits for backward"""

    name = "memory"
    rests_on = ("MasterWeights",)

    @check(points=3, title="each narrower format keeps less")
    def test_order(self, table):
        kept = [row["activation_bytes"] for row in table]
        names = [row["format"] for row in table]
        expect.that(
            len(kept) == 4 and kept == sorted(kept, reverse=True) and len(set(kept)) == 4,
            f"kept for backward: {dict(zip(names, kept))}; four formats, each less than the one before",
        )


class TestSmallestScale(Question):
    """The scale that is enough"""

    name = "smallest_scale"
    rests_on = ("underflow",)

    @check(points=5, title="the smallest scale of the table that loses less than 1%")
    def test_value(self, value, records):
        rows = expect.recorded(records, "underflow")
        enough = [row["scale"] for row in rows if row["zero"] < 0.01]
        expect.that(enough, "no scale of your table loses less than 1%: record larger ones")
        expect.close(
            value,
            min(enough),
            tol=1e-6,
            what="the smallest scale",
            hints=[(max(enough), "that is the largest: the smallest that is enough")],
        )


class TestFirstStall(Question):
    """Where a weight stands still"""

    name = "first_stall"
    rests_on = ("stall",)

    @check(points=5, title="the smallest start that did not move")
    def test_value(self, value, records):
        rows = expect.recorded(records, "stall")
        still = [row["start"] for row in rows if row["bf16"] == row["start"]]
        expect.that(still, "every start of your table moved: record larger ones")
        expect.close(
            value,
            min(still),
            tol=1e-6,
            what="the start",
            hints=[
                (max(still), "that is the largest that stood still"),
                (min(still) / 2, "that one moved: too far, but it moved"),
            ],
        )


class TestFp8Gap(Question):
    """What eight bits cost"""

    name = "fp8_gap"
    rests_on = ("formats",)

    @check(points=5, title="block FP8's distance to the floor over BF16's, in percent more")
    def test_value(self, value, records):
        above = distances(expect.recorded(records, "formats"))
        ratio = above["FP8, block"] / above["BF16, master"]
        want = 100 * (ratio - 1)
        losses = {row["format"]: row["loss"] for row in expect.recorded(records, "formats")}
        of_loss = 100 * (losses["FP8, block"] / losses["BF16, master"] - 1)
        words = (
            "100 · (distance of FP8 / distance of BF16, master - 1), where distance is loss - floor"
        )
        if abs(value - of_loss) <= 0.02:
            words = "that is of the loss itself: take the floor off both first"
        elif abs(value - ratio) <= 0.005 or abs(value - 100 * ratio) <= 0.02:
            words = "that is the ratio: subtract 1, in percent"
        elif abs(value - want / 100) <= 0.0002:
            words = "that is a share: in percent it is 100 times as much"
        expect.that(abs(value - want) <= 0.03 + 0.02 * abs(want), f"got {value:.3g}: {words}")
