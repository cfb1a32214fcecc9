"""The checks of lab e04: mixed precision, graded bit for bit where bits are the point."""

from __future__ import annotations

from dataclasses import astuple
from itertools import pairwise

import torch

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.variants import hints, variant

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
FORMS = {
    "E4M3": probes.Form(3, -6, 448.0),
    "E5M2": probes.Form(2, -14, 57344.0),
    "E2M1": probes.Form(1, 0, 6.0),
    "E3M2": probes.Form(2, -2, 28.0),
}
OVERLOOKED = (
    "look at every gradient, for inf and for nan, and ask `isfinite()` of the numbers themselves, not of a sum, norm "
    "or largest one, which -inf and a gradient without numbers do not have. (`parameters` is a generator)"
)
JOIN = (
    "every rank must join the all-reduce in every step, once, whatever it found and however many of its parameters "
    "have a gradient, also where none of its parameters has a gradient"
)
ALIKE = (
    "10,000 equal rows were all rounded in the same way: add noise before the bits are cut, of x's whole shape, "
    "another number for each element"
)


def forms():
    """Of the lab, and one that nobody can have in a table."""
    m, depth, width, short = (int(torch.randint(*ends, ())) for ends in DRAWN)
    form = probes.Form(m, -depth, 2.0 ** (width - depth) * (2 - short / 2**m))
    name = f"m = {form.mantissa_bits}, from 2^{form.smallest_exponent}, largest {form.largest:g}"
    return {**FORMS, name: form}


def numbers_of(form):
    """All that are not negative, in order."""
    steps, exponent = 2**form.mantissa_bits, form.smallest_exponent
    found = [k / steps * 2.0**exponent for k in range(steps)]
    while 2.0**exponent <= form.largest:
        found += [2.0**exponent * (1 + k / steps) for k in range(steps)]
        exponent += 1
    return torch.tensor([v for v in found if v <= form.largest])


class TestLossScaler(Exercise):
    """Dynamic loss scaling"""

    name = "LossScaler"
    reference = "minitrain.precision.loss_scaling:LossScaler"
    hidden = HIDDEN
    EQUAL = "self.finite_steps == self.interval"
    MISTAKES = (
        (("self.finite_steps + 1 if finite else 0", "self.finite_steps + finite"), "an overflow must set the count of good steps back to 0, `interval` of them in a row are needed"),
        ((EQUAL, "self.finite_steps >= self.interval", "self.scale * self.growth, 0", "self.scale * self.growth, self.finite_steps"), "the count must start at 0 again when the scale has grown"),
        ((EQUAL, f"{EQUAL} + 1"), "that grows a step late: after `interval` good steps, not after one more"),
        (("self.scale *= self.backoff", "self.scale *= 0.5", "* self.growth", "* 2.0"), "that is with 2 and 0.5: take self.growth and self.backoff"),
        (("self.finite_steps + 1 if finite else 0", "self.finite_steps + 1 if not finite else 0", "if not finite:", "if finite:"), "that grows after an overflow: the flag says *finite*"),
    )  # fmt: skip

    @check(points=4, title="every gradient is divided by the scale, in place, and none overlooked")
    def test_divides(self, submission):
        large = torch.full((4,), 3e38)
        cases = [
            ([torch.randn(3, 5).double(), None, torch.randn(7).double()], 3.0),
            ([torch.randn(()), torch.randn(2, 3, 4), None, torch.randn(0), torch.randn(7)], 2.0**16),
            ([torch.randn(5).half(), torch.randn(2, 2).bfloat16()], 8.0),
            ([torch.tensor([1.0, torch.inf]), torch.randn(3), torch.randn(4)], 16.0),
            ([torch.randn(3), torch.tensor([[1.0, -torch.inf], [2.0, 3.0]])], 4.0),
            ([torch.tensor([torch.nan]), torch.randn(3)], 4.0),
            ([large, large], 1.0),
            ([None], 4.0),
        ]  # fmt: skip
        with expect.because({("(): Expected reduction dim", "numel() == 0"): OVERLOOKED}):
            found = submission.run(probes.unscaled, cases)
        wants = probes.unscaled(variant(self.reference), cases)
        for (given, scale), got, want in zip(cases, found, wants):
            what = f"{len(given)} gradients, scale {scale:g}"
            words = (
                "that is as it was: divide each in place, `p.grad /= self.scale`, whatever is found"
            )
            hints = [(given, words)] * (scale != 1)
            expect.equal(got["gradients"], want["gradients"], hints=hints, what=what)
            words = "unscale() has changed the scale: update() does, after the step"
            expect.equal(
                got["scale"], scale, hints=[(got["scale"], words)], what=f"{what}: the scale"
            )
            expect.that(
                all(got["in_place"]),
                "`p.grad` is a new tensor: all gradients twice in memory, and who holds the old ones has "
                "them undivided. Divide in place, `p.grad /= self.scale`",
            )
            expect.that(
                bool(got["finite"]) == want["finite"],
                f"unscale returned {got['finite']!r}, and {'all' if want['finite'] else 'not all'} gradients are "
                f"finite (3e38 is): {OVERLOOKED}",
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
            are_fine = [[not any(g is bad for g in own) for own in step] for step in steps]
            want = [all(step) for step in are_fine]
            words = "every answer is the wrong way round: unscale returns True where all gradients are finite"
            turned = [not answer for answer in want]
            for rank, answers in enumerate(self.launch(submission, steps, ranks)):
                own = [step[rank] for step in are_fine]
                alone = "that is what this rank alone has found, and one would step, another not: add up over ranks what is wrong, before answering"
                what = f"rank {rank} of {ranks}, which sees {poison}: its answers"
                got = [bool(answer) for answer in answers]
                expect.equal(got, want, hints=[(turned, words), (own, alone)], what=what)

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
        with expect.because({expect.HANGS: JOIN}):
            return submission.launch(probes.agreed, steps, ranks=ranks, timeout=5)

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
        wrong = hints(self.reference, self.MISTAKES, after)
        what = f"scales of three scalers that are alive at once ({told})"
        expect.equal(got, after(variant(self.reference)), what=what, hints=wrong)


# The package's takes over weights that others have written, the lab's never does.
NO_WAY_BACK = ("self._follow()\n        for weight, master", "for weight, master")


class TestMasterWeights(Exercise):
    """BF16 weights with float32 masters"""

    name = "MasterWeights"
    reference = "minitrain.precision.master_weights:MasterWeights"
    hidden = HIDDEN
    COPIED, GIVEN = "weight.copy_(master)  # rounds to the nearest", "None if weight.grad is None"
    MISTAKES = (
        ((*NO_WAY_BACK, COPIED, "pass"), "it never moved: the optimizer moves the master, then copy the master back into the weight"),
        ((*NO_WAY_BACK, COPIED, "weight.copy_((master.view(torch.int32) & -(2**16)).view(torch.float32))"), "those are masters without their last 16 bits, nearer to 0: round to the *nearest*, as weight.copy_(master) does"),
        ((*NO_WAY_BACK, GIVEN, "torch.zeros_like(master) if weight.grad is None"), "a master was given a gradient of zeros, and so moved on: no gradient is None, and the optimizer passes over it"),
        ((*NO_WAY_BACK, COPIED, f"{COPIED}\n            master.copy_(weight)"), "a master was read back from its rounded weight: small steps get lost. It is copied once, in __init__"),
        ((), "numbers go from masters to weights, never back"),
    )  # fmt: skip

    def case(self, rule):
        """Starts, and gradients of 30 steps: 2 is frozen, 3 has none from step 11 on, 4 before."""
        starts = [torch.randn(shape).to(BF16) for shape in ((3, 5), (7,), (2,), (2, 1, 3), ())]
        starts[2] = torch.tensor([1.0, -2.0], dtype=BF16)  # where BF16 would see 30 decays of 1e-4
        steps = [[torch.randn_like(start) for start in starts] for _ in range(30)]
        for number, gradients in enumerate(steps):
            gradients[2] = None
            gradients[3 if number >= 10 else 4] = None
        return rule, starts, steps

    def compare(self, submission, cases):
        found = submission.run(probes.mastered, cases)
        wants = probes.mastered(variant(self.reference, *NO_WAY_BACK), cases)
        for number, (case, got, want) in enumerate(zip(cases, found, wants)):
            by = lambda f: probes.mastered(f, cases)[number]["weights"]  # noqa: B023, E731
            wrong = hints(self.reference, self.MISTAKES, by)
            what = f"{case[0]}: weights after {len(case[2])} steps{', set to 0 from outside before step 12' * len(case[3:])}"
            expect.identical(got["weights"], want["weights"], wrong, what)
            words = "step() has changed a weight's own gradient, or cleared it: it is the caller's"
            expect.that(got["gradients"], words)
            taken = f"in {len(case[2])} calls of step() the optimizer has made {got['steps']} steps"
            expect.that(got["steps"] <= len(case[2]), f"{taken}: one in each call")
        return found

    @check(points=4, title="after 30 steps each weight is the float32 optimizer's, rounded once")
    def test_weights(self, submission):
        cases = [self.case(rule) for rule in probes.rules()]
        self.compare(submission, [*cases, (*cases[0], True)])

    @check(points=3, title="400 steps that BF16 cannot see add up")
    def test_small_steps(self, submission):
        starts = [torch.ones(3, dtype=BF16), torch.full((2,), 4.0, dtype=BF16)]
        steps = [[torch.full((3,), 1 / 64, dtype=BF16), torch.ones(2, dtype=BF16)]] * 400
        self.compare(submission, [("SGD with momentum", starts, steps)])

    @check(
        points=3, title="masters and moments are float32, 12 bytes a parameter, and no gradients"
    )
    def test_held(self, submission):
        starts = [torch.randn(n).to(BF16) for n in (15, 7, 2)]
        steps = [[torch.randn_like(start) for start in starts] for _ in range(2)]
        (got,) = self.compare(submission, [("AdamW", starts, steps)])
        sizes = [start.numel() for start in starts]
        expect.that(
            got["masters"] == [["torch.float32", size, True] for size in sizes],
            f"masters (dtype, numbers, whether it is a leaf): {got['masters']}, expected leaves, float32 of {sizes}",
        )
        expect.that(
            set(got["state"]) == {"torch.float32"} and got["state_bytes"] == 8 * sum(sizes),
            f"the optimizer's state is {sorted(set(got['state']))} of {got['state_bytes']} bytes, expected "
            f"float32 of {8 * sum(sizes)}: it must move the masters, of all groups",
        )
        expect.that(
            not got["left"],
            "a master still holds its float32 gradient after step(): 4 bytes a parameter for nothing. "
            "Set master.grad = None",
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
            result = call["out"]
            is_kind = isinstance(result, torch.Tensor) and result.dtype == BF16
            expect.that(
                is_kind and result.shape == x.shape,
                f"got {expect.show(result)}, expected a bfloat16 tensor of shape {tuple(x.shape)}",
            )
        expect.left_alone(got["calls"], calls, ["x"])
        return [call["out"] for call in got["calls"]], got["moved"]

    @check(points=3, title="the mean of 20,000 roundings is the number itself, each by itself")
    def test_mean(self, submission):
        numbers = torch.tensor([1.001, 1.0068, -1.002, 3.14159, -0.3, 1e-5])
        part, square = numbers.repeat(10000, 1), torch.full((64, 64), 1 + 2.0**-8)
        whole = torch.randn(2**20).to(BF16).float()
        bit = (whole.view(torch.int32) + 1).view(torch.float32)  # the smallest part of the way up
        calls = [(part, None, None), (part, None, None), (square, "a", 5), (bit, None, None)]
        (*halves, square, bits), _ = self.rounded(submission, calls)
        expect.that(all((half != half[:1]).any() for half in halves), ALIKE)
        signs = torch.where(square.flatten() > 1, 1.0, -1.0)  # each as likely
        shifted = torch.fft.ifft(torch.fft.fft(signs).abs() ** 2).real[1:] / len(signs)
        expect.that(
            shifted.abs().max() < 0.15,
            f"of {len(signs):,} roundings of one number each is like that {int(shifted.abs().argmax()) + 1:,} places on, "
            "or the opposite: draw noise of its own for each element",
        )
        self.expect_mean(torch.cat(halves).double(), numbers)
        expect.that(
            not torch.equal(*halves),
            "twice without a generator, and 60,000 roundings are the same: without one, draw from torch's own, "
            "which goes on from call to call",
        )
        up = int((bits.float() != whole).sum())
        expect.that(
            0 < up <= 50,
            f"of {len(whole):,} numbers a 65,536th of the way up {up:,} went up, about 16 should: the noise is a number "
            "from 0 to 2^16 - 1, and each is as likely",
        )

    def expect_mean(self, result, numbers):
        below, above = (side.double() for side in self.neighbours(numbers))
        part = (numbers.double() - below) / (above - below)
        spread = (above - below).abs() * (part * (1 - part) / len(result)).sqrt()
        for value, got, wide in zip(numbers.tolist(), result.mean(0).tolist(), spread.tolist()):
            expect.that(
                abs(got - value) <= 6 * wide,
                f"the mean of {len(result):,} roundings of {value:.6g} is {got:.6g}, {abs(got - value) / wide:.0f} standard "
                "errors off: up with the probability of the part that is cut, which noise in *all* of the 16 bits "
                "gives, and cut afterwards, not rounded again",
            )

    @check(points=3, title="any shape; always a neighbour; what BF16 has, inf and nan stay")
    def test_neighbours(self, submission):
        x = torch.randn(3, 5, 7) * torch.logspace(-20, 20, 7)
        shapes = [x, x[0, 0, 3], x[:0], x[1, :, :1], torch.tensor([1e-40, -1e-40]), x.mT]
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
        stays = [whole, *(torch.full((50,), v) for v in (0.0, torch.inf, -torch.inf, torch.nan))]
        words = "noise from 0 to 2^16 - 1 keeps what has no bits to cut, 2^16 does not; none takes a number toward 0"
        results, _ = self.rounded(submission, [(x, None, None) for x in stays])
        for x, result in zip(stays, results):
            what = "numbers that BF16 has, which must stay"
            expect.identical(result.float(), x, what=what, hints=[(result.float(), words)])

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
        """Nearer to 0, and beyond; twice x where BF16 has it."""
        bits = x.contiguous().view(torch.int32) & -(2**16)
        low, high = bits.view(torch.float32), (bits + 2**16).view(torch.float32)
        return low, torch.where(low == x, low, high)


class TestRoundTo(Exercise):
    """The cast to a small float"""

    name = "round_to"
    reference = "minitrain.precision.formats:round_to"
    hidden = HIDDEN
    MISTAKES = (
        (("(x / step).round_()", "((x / step).abs() + 0.5).floor().copysign(x)"), "ties go to the even neighbour: torch.round does so"),
        (("(x / step).round_()", "(x / step).trunc()"), "that is cut, toward 0: x / step is rounded to the *nearest* whole number"),
        (("power.clamp_(", "power.mul_(2).clamp_("), "the steps are twice too wide: 2^e must not be above |x|, and a step is 2^(e - m). (The exponent of `torch.frexp` counts from 1/2: it is e + 1)"),
        (("power.clamp_(min=2.0**form.smallest_exponent)", "power.clamp_(min=1e-38)"), "below the smallest normal number the steps must not shrink further: clamp the exponent"),
        ((".clamp(-form.largest, form.largest)", ""), "that is above the largest: clamp x to ±form.largest first"),
    )  # fmt: skip

    def compare(self, submission, cases, what):
        """cases: (name, form, x). Bit for bit."""
        calls = [(x, astuple(form)) for _, form, x in cases]
        got = submission.run(probes.in_formats, calls)
        for (name, form, x), call in zip(cases, got):
            want = variant(self.reference)(x, form)
            wrong = hints(self.reference, self.MISTAKES, lambda f: f(x, form))  # noqa: B023
            expect.identical(call["out"], want, wrong, f"{name}, {what}")
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


# The package's scale is no subnormal number, the lab's is as small as it must be.
SCALE = ("float32_scale(amax, form)[0]", "torch.where(amax > 0, amax / form.largest, 1.0)")


class TestFakeQuantize(Exercise):
    """One scale, or one for each tile"""

    name = "fake_quantize"
    reference = "minitrain.precision.blocks:fake_quantize"
    hidden = HIDDEN
    MISTAKES = (
        ((*SCALE, "tile_amax(x, tile)", "tile_amax(x, None)", "spread(", "(lambda scale, *_: scale)("), "that is one scale for all: one for each tile"),
        ((*SCALE, "tile_amax(x, tile)", "tile_amax(x, tile[::-1])", ", tile, x.shape", ", tile[::-1], x.shape"), "those are tiles of (c, r): r counts rows, c columns"),
        ((*SCALE, "tile_amax(x, tile)", "tile_amax(x.clamp(min=0), tile)"), "the largest *magnitude* sets the scale, of negative numbers too: `.abs()` first"),
        ((*SCALE, "form) * scale", "form)"), "multiply by the scale again after rounding"),
        ((*SCALE, " if amax is None else amax", ""), "that is scaled by x's own largest: take the given amax, whichever of the two is larger"),
    )  # fmt: skip

    def compare(self, submission, cases):
        """cases: (x, name of a form, tile, amax)."""
        calls = [(x, astuple(FORMS[name]), tile, amax) for x, name, tile, amax in cases]
        results = submission.run(probes.quantized, calls)
        for (x, name, tile, amax), call in zip(cases, results):
            made = lambda f: f(x, FORMS[name], tile, amax)  # noqa: B023, E731
            want = made(variant(self.reference, *SCALE))
            what = f"{tuple(x.shape)} in {name}, {f'tiles of {tile}' if tile else 'one scale'}"
            what += "" if amax is None else f", amax = {amax.tolist()}"
            wrong = hints(self.reference, self.MISTAKES, made)
            expect.equal(call["out"], want, hints=wrong, what=what)
            ratio = torch.where(want == 0, 1.0 + (call["out"] != 0), call["out"] / want)
            what += ", each number over what it must be"
            expect.equal(ratio, torch.ones_like(want), what=what)
        expect.left_alone(results, calls, ["x", "form", "tile", "amax"])
        return [call["out"] for call in results]

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
        cases = [(torch.zeros(2, 8), "E4M3", (1, 4), None)]
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
        cases[1][0][0, :32] = 0.0
        self.compare(submission, cases)

    @check(points=2, title="an outlier in one tile changes no bit of another")
    def test_outlier(self, submission):
        x = torch.randn(4, 64)
        row, column = int(torch.randint(4, ())), int(torch.randint(64, ()))
        planted = x.clone()
        planted[row, column] = 1e5
        one, other = self.compare(submission, [(v, "E4M3", (1, 16), None) for v in (x, planted)])
        changed = (one != other).unflatten(1, (4, 16)).any(2)  # (4, 4) tiles
        changed[row, column // 16] = False
        expect.that(
            not changed.any(),
            "numbers outside the outlier's tile changed: each tile's scale comes from its own largest magnitude alone",
        )

    @check(points=1, title="an amax that is given sets the scale: larger numbers are clamped")
    def test_given(self, submission):
        quarters = torch.tensor([[0.5, 2.0], [4.0, 1.0]])
        zeros, some = torch.randn(4, 8), torch.tensor([[0.0, 2.0], [4.0, 1.0]])
        zeros[:2, :4] = 0.0
        cases = [
            (zeros, "E4M3", (2, 4), some),
            (torch.randn(4, 8), "E4M3", None, torch.full((1, 1), 0.5)),
            (torch.randn(4, 8), "E4M3", (2, 4), quarters),
            (torch.randn(3, 7), "E4M3", (2, 4), quarters),
            (torch.zeros(2, 3), "E4M3", None, torch.zeros(1, 1)),
        ]
        self.compare(submission, cases)


class TestAmaxHistory(Exercise):
    """Delayed scaling"""

    name = "AmaxHistory"
    reference = "minitrain.precision.delayed_scaling:AmaxHistory"
    hidden = HIDDEN
    MISTAKES = (
        (("torch.where(past > 0, past, now)", "now"), "those are the current ones: take the past's, if any"),
        (("torch.where(past > 0, past, now)", "past"), "a past of zeros is none: scale by `now`"),
        (("past = self.past[:, role].amax()", "past = self.past[0, role]"), "that is the newest alone: the largest of all H"),
        (("torch.maximum(self.seen.get(role, now), now)", "now"), "that is the last microbatch's: keep the maximum of the step"),
        (("torch.where(seen >= 0, rolled, self.past)", "rolled"), "-1 says that it did not run: leave it alone"),
    )  # fmt: skip

    def play(self, submission, *cases):
        """cases: (length, events), all histories alive at once."""
        got = submission.run(probes.with_histories, cases)
        play = lambda history: probes.with_histories(history, cases)  # noqa: E731
        wrong = list(hints(self.reference, self.MISTAKES, play))
        for number, (want, own) in enumerate(zip(play(variant(self.reference)), got)):
            told = "H = {}, {}: ".format(*cases[number])
            for name, what in (("told", "magnitudes to scale by"), ("past", "`past` at the end")):
                words = [(every[number][name], text) for every, text in wrong]
                expect.equal(own[name], want[name], what=told + what, hints=words)
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
        late = [("amax", 0, 7.0), ("step",), ("amax", 2, 3e-9), ("step",), ("amax", 2, 1e-9)]
        self.play(submission, (2, events), (1, newest), (2, zeros), (2, late))

    @check(points=2, title="evaluation leaves no trace, and what did not run stays")
    def test_idle(self, submission):
        events = [("amax", 0, 77.0, False)]  # evaluation before any step
        events += [("amax", role, now, True) for role, now in enumerate((5.0, 6.0, 3.0))]
        events += [("step",), ("amax", 0, 99.0, False), ("amax", 1, 7.0, True)]
        events += [("amax", 1, 1.0, False), ("amax", 1, 98.0, False)]
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
