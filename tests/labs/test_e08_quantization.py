"""The checks of lab e08: quantization, graded code by code where codes are the point."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import difference
from minitrain.lab.grading.verdicts import as_above, in_a_row

from .probes import e08_quantization as probes

LAB = "e08_quantization"
SIZES = {
    "cpu": {
        "width": 64, "layers": 2, "batch": 16, "length": 64, "corpus": 1_000_000,
        "steps": 300, "tuning": 100, "twins": 400, "matrix": 4096, "repeats": 9,
    },
    "test": {"corpus": 400_000, "steps": 130, "tuning": 60, "twins": 60, "matrix": 1024, "repeats": 3},
}  # fmt: skip
REVEALS = {
    "two_bits": Reveal("measured", "nats above the floor, 2 bits, a scale a row"),
    "spoiled": Reveal("measured", "one scale for all activations, outliers times 100"),
    "faster": Reveal("measured", "seconds of BF16 over seconds of int4, one token"),
}
HIDDEN = (
    "minitrain/quantization/plain.py",
    "minitrain/quantization/formats/grids.py",
    "minitrain/quantization/layers/int8.py",
    "minitrain/quantization/layers/fake.py",
    "minitrain/quantization/methods/gptq.py",
    "minitrain/quantization/methods/scales.py",
)
FOR_ZEROS = "a group of zeros: its scale must be above 0, or 0 / 0 is nan"
OVER = "the last group of a row may be smaller: pad with zeros, and cut the padding off"
MARGIN = 3e-4  # of a step, from any tie: what float32 may turn


def largest(bits):
    return 2 ** (bits - 1) - 1


def cut(width, group):
    return [slice(start, min(start + group, width)) for start in range(0, width, group)]


def spread(scale, group, width):
    """(F, G) -> (F, D)"""
    return scale.repeat_interleave(group, dim=1)[:, :width]


def drawn_codes(shape, bits, group):
    """Codes of which each group has the largest, of either sign, and how far each is off."""
    m = largest(bits)
    codes = torch.randint(-m, m + 1, shape)
    offsets = 0.8 * torch.rand(shape, dtype=torch.float64) - 0.4
    for part in cut(shape[1], group):
        place = torch.randint(part.start, part.stop, (shape[0],))
        rows = torch.arange(shape[0])
        codes[rows, place] = m * (2 * torch.randint(2, (shape[0],)) - 1)
        offsets[rows, place] = 0
        inner = codes[:, part].abs() == m
        inner[rows, place - part.start] = False
        codes[:, part] -= codes[:, part].sign() * inner  # no other one is as large
    return codes, offsets


def drawn(shape, bits, group, size=1.0):
    """w (F, D) that no rounding of floats turns, its codes and its scales (F, G)."""
    codes, offsets = drawn_codes(shape, bits, group)
    groups = len(cut(shape[1], group))
    scale = size * (0.2 + torch.rand(shape[0], groups, dtype=torch.float64))
    w = (codes + offsets) * spread(scale, group, shape[1])
    return w.float(), codes.to(torch.int8), scale.float()


def refuse_ready_made(got, least):
    """What came of calls; at least as many numbers must have been computed as `least` has."""
    found = sorted(name for name in got["names"] if "quantize" in name)
    expect.that(
        not found,
        f"PyTorch's own {', '.join(found)} has done it: ready-made quantization is not the exercise. Divide, round "
        "and clamp yourself",
    )
    count = sum(tensor.numel() for tensor in least)
    expect.that(
        got["numbers"] >= count,
        f"for {count:,} numbers PyTorch was seen to compute {got['numbers']:,}: compute with PyTorch's own operations, in "
        "its sight",
    )


def in_words(causes):
    """What a message ends with: the causes that explain all that was seen, if there are any."""
    return ", or ".join(dict.fromkeys(causes))


def pair(result, names=("codes", "scale")):
    """The parts of a result, by name."""
    count = len(names)
    expect.that(
        isinstance(result, (list, tuple)) and len(result) == count,
        f"got {expect.show(result)}, expected {count} tensors: return {', '.join(names)}",
    )
    for name, part in zip(names, result):
        expect.that(
            isinstance(part, torch.Tensor), f"`{name}` is {expect.show(part)}, expected a tensor"
        )
    return result


class TestQuantizeAbsmax(Exercise):
    """Symmetric integers, a scale a group"""

    name = "quantize_absmax"
    reference = "minitrain.quantization.plain:quantize_absmax"
    hidden = HIDDEN

    def compare(self, submission, cases):
        """cases: (w, bits, group, codes, scale)."""
        calls = [case[:3] for case in cases]
        got = submission.run(probes.in_a_row, calls)
        refuse_ready_made(got, [case[0] for case in cases])
        for case, call in zip(cases, got["calls"]):
            self.is_right(call["out"], *case)
        expect.left_alone(got["calls"], calls, ["w"])

    def plain(self, submission, bits=4, group=8):
        """What the checks before ask for: no short group, no zeros."""
        w, codes, scale = drawn((3, 8), bits, group)
        self.compare(submission, [(w, bits, group, codes, scale)])

    def is_right(self, result, w, bits, group, codes, scale):
        told = f"w {tuple(w.shape)}, {bits} bits, groups of {group}"
        got_codes, got_scale = pair(result)
        expect.equal(
            got_scale,
            scale,
            what=f"scale ({told})",
            hints=[*self.wrong_scales(w, bits, group), *self.raised(got_scale, scale)],
        )
        live = scale > 0
        expect.equal(
            (got_scale / scale)[live],
            torch.ones_like(scale)[live],
            what=f"each scale over what it must be ({told})",
        )
        words = self.wrong_codes(got_codes, w, bits, scale, group)
        hints = [(got_codes, words)] if words else []
        expect.equal(got_codes, codes, what=f"codes ({told})", hints=hints)

    def raised(self, got, scale):
        """A hint where small scales were replaced by one that is too large for them."""
        if got.shape != scale.shape or got.dtype != scale.dtype or not got.min() > scale.min():
            return []
        least, more = scale.clamp(min=float(got.min())), (got - scale).mean()
        was, why = "were raised to it", "only a group of zeros needs one, and weights may be tiny"
        if scale.max() < 1e-4 * got.min():
            was = "were raised to it, or it was added to them"
        return [
            (least, f"scales below {float(got.min()):.3g} {was}: {why}"),
            (scale + more, f"{float(more):.3g} was added to each scale: {why}"),
        ]

    def wrong_scales(self, w, bits, group):
        m, parts = largest(bits), cut(w.shape[1], group)
        amax = torch.stack([w[:, part].abs().amax(1) for part in parts], dim=1)
        rows = w.abs().amax(1, keepdim=True)
        highest = torch.stack([w[:, part].amax(1) for part in parts], dim=1)
        even = torch.stack([part.abs().amax(1) for part in w.chunk(len(parts), dim=1)], dim=1)
        turned = [w.flip(1)[:, part].abs().amax(1) for part in reversed(parts)]
        return [
            (amax / (m + 1), f"that is divided by {m + 1}: the largest magnitude becomes code {m}, so divide by m"),
            (amax / (m + 0.5), f"that is divided by {m + 0.5}: the largest magnitude becomes code {m}"),
            (amax / (2 * m + 1), "that is divided by all codes: a sign takes half of them"),
            (amax, f"that is the largest magnitude itself: divide it by m = {m}"),
            (m / amax, "that is upside down: scale = largest magnitude / m"),
            (rows / m, "that is one scale a row: one for each group"),
            ((rows / m).expand_as(amax), "that is one scale a row: one for each group"),
            ((w.abs().max() / m).expand_as(amax), "that is one scale for all: one for each group"),
            (highest / m, "the largest *magnitude* sets the scale, of negative numbers too: `.abs()` first"),
            (highest.abs() / m, "the largest *magnitude* sets the scale: `.abs()` comes before `.amax()`"),
            (torch.stack(turned, dim=1) / m, "those are groups counted from the row's end, so that the first one is the smaller: it is the last"),
            (even / m, f"those are groups of one size, as `torch.chunk` makes them: each has {group} columns, the last what is left"),
        ]  # fmt: skip

    def wrong_codes(self, got, w, bits, scale, group):
        """The words of the mistake that gives these codes."""
        if got.shape != w.shape:
            return OVER if got.shape[0] == w.shape[0] and got.shape[1] > w.shape[1] else ""
        x, m = w / spread(scale, group, w.shape[1]), largest(bits)
        whole = (x - x.round()).abs() < 1e-3  # the largest of a group, which a cut may turn
        ways = [
            (x.trunc().clamp(-m, m), "those are cut, toward 0: round to the nearest"),
            (x.floor().clamp(-m, m), "those are rounded down: round to the nearest"),
            (x.round() + m, "those begin at 0: codes have a sign here, from -m to m"),
            (x.round() + m + 1, "those begin at 0: codes have a sign here, from -m to m"),
        ]
        if got.is_floating_point() and torch.equal(got, x.round()):
            return "the codes are still floats: `.to(torch.int8)`"
        if not ((got != x.round()) & ~whole).any():
            return ""
        return in_words(words for way, words in ways if ((got == way) | whole).all())

    @check(
        points=3, title="one scale a row: the largest magnitude becomes code m, others the nearest"
    )
    def test_rows(self, submission):
        cases = []
        for shape, bits, size in [
            ((5, 8), 4, 1.0),
            ((3, 16), 8, 1e-3),
            ((1, 7), 3, 1e4),
            ((4, 5), 2, 1.0),
        ]:
            w, codes, scale = drawn(shape, bits, shape[1], size)
            cases.append((w, bits, shape[1], codes, scale))
        self.compare(submission, cases)

    @check(points=3, title="one scale a group, also where groups do not divide the row")
    def test_groups(self, submission):
        cases = []
        for shape, bits, group in [
            ((4, 12), 4, 4),
            ((3, 10), 3, 4),
            ((3, 9), 4, 4),
            ((2, 7), 8, 3),
            ((5, 4), 4, 16),
            ((1, 9), 4, 2),
        ]:
            w, codes, scale = drawn(shape, bits, group)
            cases.append((w, bits, group, codes, scale))
        likely = {"unflatten": OVER, "invalid for input": OVER, "reshape": OVER, "view": OVER}
        with expect.because(likely), as_above(partial(self.plain, submission)):
            self.compare(submission, cases)

    @check(
        points=2,
        title="a group of zeros gives zeros; tiny and huge weights have scales of their size",
    )
    def test_edges(self, submission):
        with as_above(partial(self.plain, submission, group=4)):
            self.zeros(submission)
            for bits, group, size in [(8, 3, 1e-30), (4, 6, 1e30)]:
                w, codes, scale = drawn((2, 6), bits, group, size)
                self.compare(submission, [(w, bits, group, codes, scale)])

    def zeros(self, submission):
        w, codes, _ = drawn((2, 8), 4, 4)
        w[0, :4], codes[0, :4] = 0, 0
        zeros = torch.zeros(2, 8)
        cases = [(zeros, zeros.to(torch.int8)), (w, codes)]
        got = submission.run(probes.in_a_row, [(given, 4, 4) for given, _ in cases])
        refuse_ready_made(got, [given for given, _ in cases])
        for (given, want), call in zip(cases, got["calls"]):
            got_codes, got_scale = pair(call["out"])
            expect.that(
                (got_scale > 0).all() and got_scale.isfinite().all(),
                f"the scales {expect.show(got_scale)} hold one that is not above 0. For {FOR_ZEROS}",
            )
            expect.equal(
                got_codes, want, what=f"codes of {tuple(given.shape)} with a group of zeros"
            )


def zero_points(w, bits, group, with_zero=True):
    """Codes, scale and zero, in float64, group by group."""
    n, codes = 2**bits - 1, torch.empty_like(w, dtype=torch.uint8)
    scales, zeros = [], []
    for part in cut(w.shape[1], group):
        tile = w[:, part].double()
        low, high = tile.amin(1, keepdim=True), tile.amax(1, keepdim=True)
        if with_zero:
            low, high = low.clamp(max=0), high.clamp(min=0)
        scale = (high - low) / n
        scale = torch.where(scale > 0, scale, 1.0)
        zero = (-low / scale).round().clamp(0, 255)
        codes[:, part] = ((tile / scale).round() + zero).clamp(0, n).byte()
        scales.append(scale.float())
        zeros.append(zero.byte())
    return codes, torch.cat(scales, 1), torch.cat(zeros, 1)


def far_from_ties(draw, ratios):
    """Draws until no ratio is near a half."""
    while True:
        drawn = draw()
        if all((r.double().remainder(1) - 0.5).abs().min() > MARGIN for r in ratios(drawn)):
            return drawn


class TestQuantizeZeroPoint(Exercise):
    """Integers with a zero point"""

    name = "quantize_zero_point"
    reference = "minitrain.quantization.plain:quantize_zero_point"
    hidden = HIDDEN

    def draw(self, shape, bits, group, move=0.0, size=1.0):
        """w whose groups lie to one side by `move`, without ties."""

        def ratios(w):
            _, scale, _ = zero_points(w, bits, group)
            lows = torch.stack([w[:, p].amin(1) for p in cut(shape[1], group)], 1).clamp(max=0)
            return w / spread(scale, group, shape[1]), -lows / scale

        return far_from_ties(lambda: size * (torch.randn(shape) + move), ratios)

    def both_signs(self, shape, bits, group, move=0.0, size=1.0):
        """As `draw`, and each group has both signs: none is of one sign by chance."""
        while True:
            w = self.draw(shape, bits, group, move, size)
            parts = [w[:, part] for part in cut(shape[1], group)]
            if all((p.amin(1) < 0).all() and (p.amax(1) > 0).all() for p in parts):
                return w

    def all_one_sign(self, shape, bits, group, move):
        """As `draw`; where all are negative, zero is the last code, and no rounding of floats lets
        a zero that is cut, not rounded, fall below it: that is another check's."""
        while True:
            w = self.draw(shape, bits, group, move)
            _, scale, zero = zero_points(w, bits, group)
            low = torch.stack([w[:, part].amin(1) for part in cut(shape[1], group)], 1)
            if torch.equal((-low.clamp(max=0) / scale).byte(), zero):
                return w

    def one_sign(self, low, high):
        """Names the first group that is of one sign; low, high (F, G)."""
        for row, part in ((low > 0) | (high < 0)).nonzero().tolist():
            sign = "positive" if low[row, part] > 0 else "negative"
            return f"row {row}, group {part} is all {sign}, {low[row, part]:.3g} to {high[row, part]:.3g}: "
        return ""

    def compare(self, submission, cases):
        got = submission.run(probes.in_a_row, cases)
        refuse_ready_made(got, [case[0] for case in cases])
        for case, call in zip(cases, got["calls"]):
            self.is_right(call["out"], *case)
        expect.left_alone(got["calls"], cases, ["w"])

    def is_right(self, result, w, bits, group):
        codes, scale, zero = zero_points(w, bits, group)
        told = f"w {tuple(w.shape)} from {w.min():.3g} to {w.max():.3g}, {bits} bits, groups of {group}"
        got_codes, got_scale, got_zero = pair(result, ("codes", "scale", "zero"))
        n, parts = 2**bits - 1, cut(w.shape[1], group)
        low = torch.stack([w[:, part].amin(1) for part in parts], 1)
        high = torch.stack([w[:, part].amax(1) for part in parts], 1)
        amax = torch.maximum(low.abs(), high.abs())
        bare = zero_points(w, bits, group, with_zero=False)
        expect.equal(got_scale, scale, what=f"scale ({told})", hints=[
            (bare[1], f"{self.one_sign(low, high)}the range must hold 0, or 0 has no code: smallest at most 0, largest at least 0"),
            ((high.clamp(min=0) - low.clamp(max=0)) / (n + 1), f"that is divided by {n + 1}: between {n + 1} codes there are {n} steps"),
            (amax / largest(bits), "that is absmax's scale: (largest - smallest) / (2^b - 1)"),
            (amax / n, "that is of the largest magnitude: the whole range, largest - smallest, has 2^b - 1 steps"),
        ])  # fmt: skip
        expect.equal(
            (got_scale / scale),
            torch.ones_like(scale),
            what=f"each scale over what it must be ({told})",
        )
        expect.equal(got_zero, zero, what=f"zero ({told})", hints=[
            (zero.float(), "it is a code: `.byte()`"),
            (zero.to(torch.int32), "it is a code: `.byte()`"),
            ((-low.clamp(max=0) / scale).byte(), "that is cut: zero is the *nearest* code, round it"),
            ((n - zero.int()).byte(), "that is counted from the other end: -smallest / scale"),
        ])  # fmt: skip
        x = w / spread(scale, group, w.shape[1])
        whole = spread(zero.float(), group, w.shape[1])
        from_low = (w - spread(low.clamp(max=0), group, w.shape[1])) / spread(
            scale, group, w.shape[1]
        )
        expect.equal(got_codes, codes, what=f"codes ({told})", hints=[
            ((x + whole).clamp(0, n).byte(), "those are cut, toward 0: round to the nearest"),
            ((x.round() - whole).clamp(0, n).byte(), "zero is subtracted: it is added, so that 0 has the code `zero`"),
            (x.round().clamp(0, n).byte(), "zero is missing: add it, so that 0 has the code `zero`"),
            (from_low.round().clamp(0, n).byte(), "w - smallest was rounded, and `zero` apart from it: w / s is rounded, and the whole number `zero` added"),
            (codes.float(), "the codes are still floats: `.byte()`"),
        ])  # fmt: skip

    @check(points=4, title="the range from smallest to largest has 2^b - 1 steps; 0 has a code")
    def test_codes(self, submission):
        shapes = [
            ((5, 8), 4, 8, 0.5, 1.0),
            ((3, 16), 8, 16, -0.3, 1e-3),
            ((4, 9), 3, 9, 0.2, 1e3),
            ((1, 6), 2, 6, 0.0, 1.0),
        ]
        cases = [(self.both_signs(s, b, g, move, size), b, g) for s, b, g, move, size in shapes]
        self.compare(submission, cases)

    @check(points=2, title="groups of one sign only: 0 is inside, exactly")
    def test_one_sign(self, submission):
        shapes = [((4, 8), 4, 4, 6.0), ((3, 8), 4, 8, -6.0), ((2, 5), 8, 5, 9.0)]
        cases = [(self.all_one_sign(s, b, g, move), b, g) for s, b, g, move in shapes]
        both = self.both_signs((12, 8), 4, 8), 4, 8
        with as_above(lambda: self.compare(submission, [both])):
            self.compare(submission, cases)

    @check(points=2, title="groups that do not divide the row, and groups of zeros")
    def test_edges(self, submission):
        shapes = [((3, 10), 4, 4, 0.4), ((5, 4), 8, 16, 0.1)]
        likely = {"unflatten": OVER, "invalid for input": OVER, "reshape": OVER, "view": OVER}
        cases = [(self.both_signs(s, b, g, move), b, g) for s, b, g, move in shapes]
        cases.append((self.draw((2, 7), 3, 3, 6.0), 3, 3))
        plain = [(self.both_signs((3, 8), 4, 4), 4, 4)]
        plain += [(self.draw((4, 8), 4, 8, move), 4, 8) for move in (6.0, -6.0)]
        with expect.because(likely), as_above(lambda: self.compare(submission, plain)):
            self.compare(submission, cases)
        got = submission.run(probes.in_a_row, [(torch.zeros(2, 6), 4, 3)])
        codes, scale, zero = pair(got["calls"][0]["out"], ("codes", "scale", "zero"))
        expect.that(
            (scale > 0).all() and scale.isfinite().all(),
            f"the scales of zeros are {expect.show(scale)}. For {FOR_ZEROS}",
        )
        expect.equal(
            codes, zero.repeat_interleave(3, 1), what="codes of zeros, which are the code `zero`"
        )
        self.both_ends(submission)

    def both_ends(self, submission):
        """Where largest = -smallest, w/s and z are halves, and both may round up."""
        w = torch.randn(64, 6).clamp(-2, 2)
        w[:, 1], w[:, 4] = 2 + torch.rand(64), 0
        w[:, 4] = -w[:, 1]
        cases = [(w, bits, 6) for bits in (4, 8)]
        for (_, bits, _), call in zip(cases, submission.run(probes.in_a_row, cases)["calls"]):
            codes, scale, zero = pair(call["out"], ("codes", "scale", "zero"))
            off = ((codes.double() - zero.double()) * scale.double() - w).abs() > 0.51 * scale
            over = (w / scale).round() + zero > 2**bits - 1  # of these the code must be cut
            words = f"w/s and z may both round up, and codes end at {2**bits - 1}: clamp them"
            if (off & ~over).any():
                words = "the code of w is round(w / s) + zero"
            expect.that(
                int(codes.max()) < 2**bits and not off.any(),
                f"in a group from -a to a, with {bits} bits, a code is {int(codes.max())} or a weight is off by "
                f"more than half a step: {words}",
            )


def by_token(x, codes, scale, threshold=6.0):
    """x Ŵ^T with the columns of outliers in float64; x's codes, the outliers, and x's scales."""
    x = x.double()
    outlier = x.abs().amax(0) >= threshold
    regular = x.masked_fill(outlier, 0)
    x_scale = regular.abs().amax(1, keepdim=True) / 127
    x_scale = torch.where(x_scale > 0, x_scale, 1.0)
    x_codes = (regular / x_scale).round()
    w = codes.double() * scale.double()
    y = (x_codes * x_scale) @ w.t() + x[:, outlier] @ w[:, outlier].t()
    return y, x_codes, outlier, x_scale.where(regular.any(1, keepdim=True), 0.0)


class TestLlmInt8(Exercise):
    """Int8 products beside a few exact columns"""

    name = "llm_int8"
    reference = "minitrain.quantization.plain:llm_int8"
    hidden = HIDDEN

    def draw(self, tokens, width, features, outliers=(), negative=False):
        """x (T, D) without ties; the columns `outliers` are 6 and more."""
        x_codes, offsets = drawn_codes((tokens, width), 8, width)
        x = (
            (x_codes + offsets) * (0.01 + 0.02 * torch.rand(tokens, 1, dtype=torch.float64))
        ).float()
        for number, column in enumerate(outliers):
            x[:, column] = 0.3 * torch.randn(tokens)
            x[int(torch.randint(tokens, ())), column] = (-1 if negative else 1) * (
                20.0 + 10 * number
            )
        regular = torch.ones(width, dtype=torch.bool)
        regular[list(outliers)] = False
        rest = x[:, regular]
        rest = rest / rest.abs().amax(1, keepdim=True) * 127  # again without ties
        clear = torch.where((rest.remainder(1) - 0.5).abs() < 0.02, rest + 0.1 * -rest.sign(), rest)
        x[:, regular] = clear * (0.01 + 0.02 * torch.rand(tokens, 1))
        codes = torch.randint(-127, 128, (features, width), dtype=torch.int8)
        return x, codes, 0.001 + 0.01 * torch.rand(features, 1)

    def compare(self, submission, cases, what):
        in_a_row(lambda some: self.are_right(submission, some, what), cases)

    def are_right(self, submission, cases, what):
        extras = [self.extra(*case) for case in cases]
        calls = [(*case[:3], extra, *case[3:]) for case, extra in zip(cases, extras)]
        got = submission.run(probes.multiplied, calls)
        refuse_ready_made(got, [case[0] for case in cases])
        for case, extra, call, notes in zip(cases, extras, got["calls"], got["notes"]):
            self.used_integers(notes, *case)
            self.is_right(call["out"], extra, what, *case)
        expect.left_alone(got["calls"], calls, ["x", "codes", "scale"])

    def used_integers(self, notes, x, codes, scale, threshold=6.0):
        _, x_codes, outlier, _ = by_token(x, codes, scale, threshold)
        expect.that(
            notes or not outlier.all(),
            "`multiply` was not called where every column is an outlier's: it is called once, whatever x holds",
        )
        expect.that(
            notes,
            "`multiply` was never called: the integer units have nothing to do. Give it x's codes and W's",
        )
        for note in notes:
            expect.that(
                note["dtypes"] == ["torch.int8"] * 2,
                f"`multiply` was given {' and '.join(note['dtypes'])}: both are int8, a byte a number",
            )
        expect.that(
            len(notes) == 1,
            f"`multiply` was called {len(notes)} times: one int8 matmul for all ordinary columns, and the "
            "outliers' in floating point",
        )
        a = notes[0]["a"]
        if a.shape[1] == x.shape[1]:
            went = a.any(0) & outlier
            expect.that(
                not went.any(),
                f"{int(outlier.sum())} of {x.shape[1]} columns reach {threshold:g}, and codes of {int(went.sum())} of "
                f"them went into `multiply`, too: {self.why_went(a, went, x, threshold)}",
            )
            a = a[:, ~outlier]
        expect.equal(
            a.double(),
            x_codes[:, ~outlier],
            what="the codes of x that went into `multiply`, ordinary columns",
            hints=self.wrong_codes(x, outlier, threshold, a),
        )

    def why_went(self, a, went, x, threshold):
        """a: the codes of x (T, D) that were multiplied; went (D,): outliers that are among them."""
        x, a = x[:, went], a[:, went]
        if not (a[x.abs() >= threshold] != 0).any():
            return "the large numbers alone were taken out, and a column is taken out whole"
        if (x.abs().amax(0) == threshold).all():
            return "a column whose largest magnitude is the threshold itself reaches it, too: `>=`"
        if (x.amax(0) < threshold).all():
            return (
                "it is the largest *magnitude* that reaches it, of negative numbers too: `.abs()`"
            )
        return "make those columns 0 there, or leave them out"

    def wrong_codes(self, x, outlier, threshold, got):
        """got (T, K): the codes of the ordinary columns that came."""
        rows = x.abs().amax(1, keepdim=True)
        regular = x.masked_fill(outlier, 0)
        whole = (regular / (regular.abs().max() / 127)).round()
        columns = (regular / (regular.abs().amax(0) / 127).clamp(min=1e-30)).round()
        return [
            ((x / (rows / 127)).round()[:, ~outlier].double(), "the outliers have set the scales: take the largest magnitude of each token *without* them"),
            (whole[:, ~outlier].double(), "that is one scale for all tokens: each token has its own"),
            (columns[:, ~outlier].double(), "that is one scale a column: each token, a row of x, has its own"),
            ((regular * 127 / threshold).round()[:, ~outlier].double(), "that is the threshold over 127 as every token's scale: it is a token's own largest ordinary number over 127"),
            *self.not_full(regular, got),
        ]  # fmt: skip

    def not_full(self, regular, got):
        """Of a token whose largest number has a code other than 127."""
        full = got.double().abs().amax(1) if got.numel() else torch.full((len(got),), 127.0)
        short = ((full != 127) & regular.any(1)).nonzero().flatten().tolist()
        words = "the largest ordinary number of a token has the code ±127: its scale is that number's magnitude over 127"
        return (
            [(got.double(), f"of token {short[0]} it is {full[short[0]]:.0f}: {words}")]
            if short
            else []
        )

    def extra(self, *case):
        """What the integer unit of a check adds: nobody has it who does without its sums. A token
        without ordinary numbers has no scale that counts."""
        *_, x_scale = by_token(*case)
        return torch.randint(-900, 900, (len(case[0]), len(case[1]))) * (x_scale > 0)

    def is_right(self, got, extra, what, x, codes, scale, threshold=6.0):
        y, x_codes, outlier, x_scale = by_token(x, codes, scale, threshold)
        added = extra * x_scale * scale.t()
        of_outliers = x[:, outlier].double() @ (codes.double() * scale)[:, outlier].t()
        part, bare = y + added - of_outliers, x_codes @ codes.double().t() + extra
        without_scale = part + x[:, outlier].double() @ codes[:, outlier].double().t()
        expect.equal(got, (y + added).float(), tol=1e-4, what=what, hints=[
            (y.float(), "`multiply` was called, and y is not made of what it returned: this check's adds something to each sum"),
            (part.float(), "the outliers' columns are missing: add their product in floating point"),
            (bare.float(), "those are bare integers: multiply by the scales of x and of W"),
            (without_scale.float(), "the outliers' product lacks W's scale"),
        ])  # fmt: skip

    @check(
        points=3, title="no outlier: int8 products, each token and each row of W with its own scale"
    )
    def test_plain(self, submission):
        cases = [self.draw(*sizes) for sizes in ((6, 12, 5), (1, 8, 3), (9, 4, 1))]
        x, codes, scale = self.draw(5, 10, 4)
        x[2] = 0  # a token of zeros
        cases += [(x, codes, scale), (*self.draw(4, 9, 6, outliers=(3,)), float("inf"))]
        with expect.because({"nan": FOR_ZEROS}):
            self.compare(submission, cases, "y without outliers")

    @check(
        points=4,
        title="columns that reach the threshold go in floating point, whole, and set no scale",
    )
    def test_outliers(self, submission):
        cases = [
            self.draw(6, 12, 5, outliers=(2, 9)),
            self.draw(7, 10, 3, outliers=(4,), negative=True),
            (*self.draw(1, 6, 4, outliers=(0, 5)), 6.0),
            (*self.draw(5, 8, 4, outliers=(1,)), 25.0),
            (*self.draw(5, 8, 4, outliers=(1, 2)), 25.0),
        ]
        plain = self.draw(6, 12, 5)
        with as_above(lambda: self.compare(submission, [plain], "y without outliers")):
            self.compare(submission, cases, "y with outliers")

    @check(
        points=3,
        title="a column that is exactly at the threshold; all columns; other sizes in between",
    )
    def test_edges(self, submission):
        x, codes, scale = self.draw(4, 7, 5)
        at = 2.0
        x[:, 3], x[1, 3] = 0.1, at  # the largest of its column
        everything = self.draw(3, 5, 4)
        cases = [(x, codes, scale, at), (*everything, 1e-9), self.draw(8, 16, 2, outliers=(7,))]
        plain = [self.draw(6, 12, 5), self.draw(6, 12, 5, outliers=(2, 9))]
        plain.append(self.draw(7, 10, 3, outliers=(4,), negative=True))
        with as_above(lambda: self.compare(submission, plain, "y")):
            self.compare(submission, cases, "y")


def damped(h, damping, way=""):
    """`way` is a mistake."""
    h = h.double().clone()
    dead, before = h.diagonal() == 0, h.diagonal().mean()
    if not dead.all():
        h.diagonal()[dead] = (h.diagonal() if way == "mean of all" else h.diagonal()[~dead]).mean()
    else:
        h.diagonal()[dead] = 1.0
    mean = before if way == "too early" else h.diagonal().mean()
    h.diagonal().add_(damping * (h.diagonal() if way == "each its own" else mean))
    return h


def gptq_oracle(w, h, bits, group, damping=0.01, stale=False, compensate=True, power=1.0, way=""):
    """By the inverse of what is left of H, column by column, in float64: no factor, no blocks.

    power: of the diagonal's entry by which the error is divided, 1 where it is right.
    """
    w, h, m = w.double().clone(), damped(h, damping, way), largest(bits)
    original = w.clone()
    codes, scales, nearest = torch.empty_like(w, dtype=torch.int8), [], []
    for part in cut(w.shape[1], group):
        source = original if stale else w
        scale = (source[:, part].abs().amax(1) / m).float()
        scale = torch.where(scale > 0, scale, 1.0)
        scales.append(scale)
        for j in range(part.start, part.stop):
            x = w[:, j] / scale.double()
            nearest.append(
                ((x.abs() + 0.5).remainder(1)).where(x.abs() < m + 0.4, x.new_tensor(0.5))
            )
            q = x.round() if way == "unclamped" else x.round().clamp(-m, m)
            codes[:, j] = q.to(torch.int8)
            left = torch.linalg.inv(h[j:, j:])
            error = (w[:, j] - q * scale.double()) / left[0, 0] ** power
            if compensate:
                w[:, j:] -= torch.outer(error, left[0])
    close = torch.stack(nearest)
    return codes, torch.stack(scales, 1), torch.minimum(close, 1 - close).min().item()


def factor_of_inverse(h):
    return torch.linalg.cholesky(torch.linalg.inv(h), upper=True)


def gptq_in_blocks(
    w, h, bits, group, block, damping, beyond=True, by_group=True, factor=factor_of_inverse,
    in_group=False, anew=False,
):  # fmt: skip
    """Mistakes: errors that end with their block, or their group; blocks over a group's start;
    another factor; a group's scale fitted again in each of its blocks."""
    w, m, width = w.double().clone(), largest(bits), w.shape[1]
    upper = factor(damped(h, damping))
    groups = cut(width, group) if by_group else [slice(0, width)]
    starts = [start for part in groups for start in range(part.start, part.stop, block)]
    codes, scales = torch.empty_like(w, dtype=torch.int8), []
    for start, stop in zip(starts, [*starts[1:], width]):
        errors = torch.zeros_like(w[:, start:stop])
        for j in range(start, stop):
            if j % group == 0 or (anew and j == start):
                whole = w[:, j // group * group : (j // group + 1) * group]
                scales = scales[: j // group]
                scales.append((whole.abs().amax(1) / m).clamp(min=1e-38).float())
            own = scales[-1].double()
            q = (w[:, j] / own).round().clamp(-m, m)
            codes[:, j], errors[:, j - start] = q.to(torch.int8), (w[:, j] - q * own) / upper[j, j]
            w[:, j:stop] -= torch.outer(errors[:, j - start], upper[j, j:stop])
        if beyond:
            end = min((start // group + 1) * group, width) if in_group else width
            w[:, stop:end] -= errors @ upper[start:stop, stop:end]
    return codes, torch.stack(scales, 1)


def correlated(width, tokens=None):
    """X^T X / T of inputs that know of one another, (D, D)."""
    x = torch.randn(tokens or 4 * width, width) @ (
        torch.eye(width) + 0.5 * torch.randn(width, width)
    )
    return (x.t() @ x / len(x)).double()


def gptq_case(rows, width, bits, group, dead=(), over=False):
    """w and h of which no column comes near a tie; over: some code is clamped to -m."""
    while True:
        w, h = torch.randn(rows, width), correlated(width)
        h[list(dead)], h[:, list(dead)] = 0, 0
        if over and gptq_oracle(w, h, bits, group, way="unclamped")[0].min() >= -largest(bits):
            continue
        if gptq_oracle(w, h, bits, group)[2] > MARGIN:
            return w, h


CLAMPED = (
    "codes go from -m to m: the errors of columns before it may make a weight larger than any that the scale was fitted "
    "to, so clamp its code"
)


class TestGptq(Exercise):
    """Rounding that makes up for its errors"""

    name = "gptq"
    reference = "minitrain.quantization.plain:gptq"
    hidden = HIDDEN

    def compare(self, submission, cases):
        got = submission.run(probes.in_a_row, cases)
        refuse_ready_made(got, [case[0] for case in cases])
        every = [(call["out"], *case) for call, case in zip(got["calls"], cases)]
        for one in every:
            self.is_right(*one, every=every)
        expect.left_alone(got["calls"], cases, ["w", "h"])

    def is_right(self, result, w, h, bits, group, block=128, damping=0.01, *, every):
        codes, scale, _ = gptq_oracle(w, h, bits, group, damping)
        told = f"w {tuple(w.shape)}, {bits} bits, groups of {group}, block {block}"
        got_codes, got_scale = pair(result)
        expect.that(
            got_codes.dtype == torch.int8 and got_codes.shape == w.shape,
            f"codes are {tuple(got_codes.shape)} {got_codes.dtype}, expected {tuple(w.shape)} torch.int8",
        )
        zeros = (w == 0).all(1, keepdim=True).expand_as(scale)  # any scale above 0 will do
        expect.that(
            got_scale.shape != scale.shape or ((got_scale > 0) & got_scale.isfinite()).all(),
            f"a scale is not above 0. For {FOR_ZEROS}",
        )
        if got_scale.shape == scale.shape:
            got_scale = torch.where(zeros, scale, got_scale)
        wrong = difference(got_scale, scale, 1e-4) or difference(got_codes, codes)
        found = self.mistake(every) or self.beyond(got_codes, bits) if wrong else ""
        words = [(got_scale, found)] if found else []
        expect.equal(got_scale, scale, tol=1e-4, what=f"scale ({told})", hints=words)
        words = [(got_codes, found)] if found else []
        expect.equal(got_codes, codes, what=f"codes ({told})", hints=words)

    def mistake(self, every):
        """The words of the mistakes that give what came of every call."""
        left = None
        for result, w, h, bits, group, *more in every:
            left = {
                words
                for variant, words in self.mistakes(w, h, bits, group, *more)
                if (left is None or words in left) and self.is_same(pair(result), variant(), w)
            }
        return in_words(sorted(left))

    def beyond(self, codes, bits):
        """What is certain of codes that are too large, whatever else is wrong."""
        most = int(codes.int().abs().max())
        return f"a code of magnitude {most} came, and {CLAMPED}" if most > largest(bits) else ""

    def is_same(self, got, variant, w):
        codes, scale, *_ = variant
        live = ~(w == 0).all(1)
        return (
            got[1].shape == scale.shape
            and torch.equal(codes[live], got[0][live])
            and bool(((scale == 1) | torch.isclose(got[1].float(), scale, rtol=1e-3))[live].all())
        )  # 1: of a group of zeros, where any will do

    def mistakes(self, w, h, bits, group, block=128, damping=0.01):
        one = partial(gptq_oracle, w, h, bits, group)
        blocks = partial(gptq_in_blocks, w, h, bits, group, block, damping)
        return [
            (partial(one, damping, compensate=False),
             "that is rounding to nearest: after each column the ones to come take up its error"),
            (partial(one, damping, stale=True),
             "the scales of a group come from the weights as they were: fit them when its first column comes, on weights "
             "that hold every correction so far"),
            *[(partial(one, damping, power=power),
               "the error must be divided by U[j, j] before it is spread: e = (w_j - ŵ_j) / U[j, j]")
              for power in (0.5, 0.0)],
            *[(partial(blocks, False, by_group),
               "the errors of a block stay in it: what is beyond the block must get them too, by one matmul after it")
              for by_group in (True, False)],
            (partial(blocks, True, False),
             "a block has run over a group's start: the group's scale was fitted on columns behind the block that still "
             "lack its errors. End blocks where a group ends"),
            (partial(blocks, factor=torch.linalg.inv),
             "that is with the inverse of H itself, the same for all columns. Row j of its Cholesky factor U is of what is "
             "left of H from column j on"),
            (partial(blocks, factor=partial(torch.linalg.cholesky, upper=True)),
             "that is with the Cholesky factor of H: U is that of its inverse"),
            (partial(one, damping, way="each its own"),
             "each number of the diagonal was damped by its own: all by damping · the mean of the diagonal"),
            (partial(one, damping, way="mean of all"),
             "columns whose input was always 0 were given the mean of all: the mean of the others, of which none is 0"),
            (partial(one, damping, way="too early"),
             "the damping comes of the diagonal's mean with the zeros of inputs that were always 0: give them theirs first"),
            (partial(gptq_oracle, w.masked_fill(h.diagonal() == 0, 0), h, bits, group, damping),
             "the weights of inputs that were always 0 were made 0: they are rounded like all others, only H's diagonal is "
             "given a number for them"),
            (partial(blocks, in_group=True),
             "the errors of a group stay in it: after a block all columns beyond it get them, to the end of the row"),
            (partial(blocks, anew=True),
             "a group's scale was fitted again in each of its blocks: it is fitted once, when its first column comes"),
            (partial(one, damping, way="unclamped"), CLAMPED),
            (partial(one, 0.0),
             "the damping is missing: add damping · mean of the diagonal to the diagonal"),
        ]  # fmt: skip

    @check(
        points=2, title="inputs that know nothing of one another: rounding to nearest, bit for bit"
    )
    def test_identity(self, submission):
        cases = []
        for rows, width, bits, group, block in [(4, 12, 4, 12, 5), (3, 10, 3, 4, 128)]:
            w, *_ = drawn((rows, width), bits, group)
            cases.append((w, 3.0 * torch.eye(width, dtype=torch.float64), bits, group, block))
        self.compare(submission, cases)

    @check(points=5, title="columns to come make up for each error, in one group of codes a row")
    def test_columns(self, submission):
        cases = [(*gptq_case(4, 16, 4, 16, over=True), 4, 16)]
        for rows, width, bits in [(6, 9, 3), (1, 12, 2), (5, 1, 4)]:
            cases.append((*gptq_case(rows, width, bits, width), bits, width))
        cases.append((*gptq_case(4, 10, 4, 10), 4, 10, 128, 0.2))
        while gptq_oracle(*cases[-1][:4], 0.2)[2] < MARGIN:
            cases[-1] = (*gptq_case(4, 10, 4, 10), 4, 10, 128, 0.2)
        self.compare(submission, cases)

    @check(points=3, title="the scales of a group are fresh, whatever the size of a block")
    def test_groups(self, submission):
        cases = []
        w, h = gptq_case(4, 20, 3, 8)
        for block in (5, 3, 12, 8, 1, 128):
            cases.append((w, h, 3, 8, block))
        for rows, width, bits, group, block in [
            (3, 18, 4, 6, 4),
            (2, 11, 3, 4, 16),
            (4, 12, 4, 12, 5),
        ]:
            cases.append((*gptq_case(rows, width, bits, group), bits, group, block))
        one_group = *gptq_case(4, 16, 4, 16), 4, 16
        with as_above(lambda: self.compare(submission, [one_group])):
            self.compare(submission, cases)

    @check(points=2, title="columns whose input was always 0, rows of zeros")
    def test_dead(self, submission):
        words = "a column whose input was always 0 leaves H without an inverse: give its diagonal the mean of the others, 1 if all are 0"
        cases = [
            (*gptq_case(4, 10, 4, 5, dead=(2, 7)), 4, 5, 4),
            (*gptq_case(3, 8, 3, 8, dead=(0,)), 3, 8),
        ]
        w, h = gptq_case(4, 8, 4, 4)
        w[1] = 0
        cases.append((w, h, 4, 4))
        cases.append((drawn((3, 6), 4, 3)[0], torch.zeros(6, 6, dtype=torch.float64), 4, 3))
        cases.append(self.damped_case())
        signs = ("singular", "positive-definite", "positive definite", "factorization")
        plain = [(*gptq_case(4, 16, 4, 16), 4, 16), (*gptq_case(4, 20, 3, 8), 3, 8, 5)]
        with (
            expect.because({signs: words}),
            as_above(lambda: self.compare(submission, plain)),
        ):
            self.compare(submission, cases)

    def damped_case(self):
        """Half of the inputs are dead: here it is seen what their diagonal was filled with."""
        while True:
            case = *gptq_case(6, 10, 4, 10, dead=(1, 2, 4, 7, 8)), 4, 10
            codes, _, margin = gptq_oracle(*case, damping=0.3)
            others = [
                gptq_oracle(*case, damping=0.3, way=way)[0] for way in ("mean of all", "too early")
            ]
            if margin > MARGIN and not any(
                torch.equal(a, b) for a, b in pairwise([codes, *others, codes])
            ):
                return *case, 128, 0.3

    @check(points=2, title="beyond a block the columns are written once a block, not once a column")
    def test_lazy(self, submission):
        one_block = *gptq_case(4, 16, 4, 16), 4, 16
        in_blocks = *gptq_case(4, 24, 4, 24), 4, 24, 6
        with as_above(lambda: self.compare(submission, [one_block])):
            self.compare(submission, [in_blocks])
        rows, width, block = 128, 256, 16
        case = (torch.randn(rows, width), correlated(width), 4, width, block)
        (numbers,) = submission.run(probes.written, [case])
        bound, least = rows * width * width * 0.6, rows * width * block / 2
        expect.that(
            numbers >= least,
            f"w {rows} x {width}: PyTorch was seen to write {numbers:,} numbers only. Compute with PyTorch's own "
            "operations, in its sight",
        )
        expect.that(
            numbers < bound,
            f"w {rows} x {width} in blocks of {block}: {numbers / 1e6:.1f} million numbers were written, expected under "
            f"{bound / 1e6:.1f}. Keep a block's errors, correct within the block, and what is beyond it by one matmul "
            "after the block: errors @ U[start:stop, stop:]",
        )


def awq_errors(
    w,
    mean_abs,
    h,
    bits,
    group,
    steps=20,
    normed=True,
    back=True,
    of_outputs=True,
    first=0,
    of_scaled=False,
    diagonal=False,
):
    """The error of every ratio, and the scales."""
    scales, errors = [], []
    for k in range(steps):
        s = mean_abs.double().clamp(min=1e-4) ** ((k + first) / steps)
        if normed:
            s = s / (s.max() * s.min()).sqrt()
        scaled, m = w.double() * s, largest(bits)
        kept = torch.empty_like(scaled)
        for part in cut(w.shape[1], group):
            scale = (scaled[:, part].abs().amax(1, keepdim=True) / m).clamp(min=1e-38)
            kept[:, part] = (scaled[:, part] / scale).round().clamp(-m, m) * scale
        change = kept - scaled if of_scaled else (kept / s if back else kept) - w.double()
        moment = h.double() if of_outputs else torch.eye(len(h), dtype=torch.float64)
        moment = moment.diagonal().diag() if diagonal else moment
        scales.append(s.float())
        errors.append(((change @ moment) * change).sum().item())
    return scales, errors


DEAD_INPUT = (
    "an input that is always 0 makes s 0, and its division by it nan: clamp mean_abs from below"
)


OF_ZEROS = (
    "where no input is always 0, errors and s are right: the mean magnitude of one that is counts as 1e-4, clamped before the "
    "power is taken"
)


class TestAwq(Exercise):
    """The search for the columns' scale"""

    name = "awq"
    reference = "minitrain.quantization.plain:awq"
    hidden = HIDDEN

    def draw(self, rows, width, spread=1.5, dead=()):
        """w and what its inputs are like: of very different sizes, and they know of one another."""
        sizes = torch.exp(spread * torch.randn(width))
        x = torch.randn(200, width) @ (torch.eye(width) + 0.5 * torch.randn(width, width)) * sizes
        x[:, list(dead)] = 0
        return torch.randn(rows, width), x.abs().mean(0), x.t() @ x / len(x)

    def compare(self, submission, cases):
        got = submission.run(probes.in_a_row, cases)
        refuse_ready_made(got, [case[0] for case in cases])
        every = [(call["out"], *case) for call, case in zip(got["calls"], cases)]
        for one in every:
            self.is_right(*one, every=every)
        expect.left_alone(got["calls"], cases, ["w", "mean_abs", "h"])

    def is_right(self, result, w, mean_abs, h, bits, group, steps=20, *, every):
        told = f"w {tuple(w.shape)}, {bits} bits, groups of {group}, {steps} ratios"
        expect.that(
            isinstance(result, (list, tuple)) and len(result) == 2,
            f"got {expect.show(result)}: return the best s and the list of all errors",
        )
        s, errors = result
        given = mean_abs, h, bits, group, steps
        scales, want = awq_errors(w, *given)
        expect.that(
            isinstance(errors, (list, tuple)) and len(errors) == steps,
            f"errors: got {expect.show(errors)}, expected a list of {steps} numbers, one for each ratio k / {steps}",
        )
        errors = [float(error) for error in errors]
        expect.that(
            all(error == error for error in errors) or mean_abs.all(),
            f"an error is nan. {DEAD_INPUT}",
        )
        words = "ratio 0 comes first, and its s is 1: its error is that of plain rounding, the sum of (ΔW h) · ΔW"
        first = [(errors, words)] if difference(errors[:1], want[:1], 0.03) else []
        if not first and difference(errors, want, 0.03) and self.is_right_without_zeros(every):
            first = [(errors, OF_ZEROS)]
        expect.equal(errors, want, tol=0.03, what=f"the error of each ratio ({told})", hints=[
            (awq_errors(w, *given, of_outputs=False)[1], "that is the weights' own error: what counts is the outputs', the sum of (ΔW h) · ΔW"),
            (awq_errors(w, *given, back=False)[1], "divide by s again before the error is taken: x / s meets W · s"),
            (awq_errors(w, *given, of_scaled=True)[1], "that is the change of W · s, which meets x / s: divide it by s again, h is of x"),
            ([error / w.numel() for error in want], "that is the mean over all weights: the sum of (ΔW h) · ΔW"),
            ([error / len(w) for error in want], "that is the mean over rows: the sum of (ΔW h) · ΔW"),
            (awq_errors(w, *given, first=1)[1], "the grid begins at ratio 0: k / steps for k = 0, 1, … steps - 1"),
            (awq_errors(w, *given, diagonal=True)[1], "those are the errors by h's diagonal alone, the sum of ΔW² · h_jj: (ΔW h) · ΔW also has the products of two inputs, h_ij"),
            *first,
        ])  # fmt: skip
        best = errors.index(min(errors))
        expect.that(
            isinstance(s, torch.Tensor) and s.shape == mean_abs.shape,
            f"s is {expect.show(s)}, expected a tensor {tuple(mean_abs.shape)}: one scale a column",
        )
        told = f"s of the smallest error, ratio {best / steps:.3g} ({told})"
        wrong = difference(s, scales[best], 1e-3)
        hints = by_a_factor(s, scales[best]) if wrong else []
        if wrong and (words := in_words(self.wrong_scales(every))):
            hints = [(s, words)]
        elif hints:
            hints = [
                (
                    s,
                    f"{hints[0][1]}: they are divided by the root of their largest times their smallest",
                )
            ]
        elif wrong and self.is_right_without_zeros(every):
            hints = [(s, OF_ZEROS)]
        expect.equal(s, scales[best], tol=1e-3, what=told, hints=hints)

    def is_right_without_zeros(self, every):
        """Whether no call is wrong but those of which an input is always 0."""
        for result, w, mean_abs, *given in every:
            if not mean_abs.all():
                continue
            scales, want = awq_errors(w, mean_abs, *given)
            if not isinstance(result, (list, tuple)) or len(result) != 2:
                return False
            s, errors = result
            if difference(errors, want, 0.03) or difference(
                s, scales[errors.index(min(errors))], 1e-3
            ):
                return False
        return True

    def wrong_scales(self, every):
        """The words of the mistakes whose s came of every call."""
        left = None
        for (s, errors), w, mean_abs, *given in every:
            scales, _ = awq_errors(w, mean_abs, *given)
            steps, best, worst = len(scales), errors.index(min(errors)), errors.index(max(errors))
            bare = mean_abs.clamp(min=1e-4) ** (best / steps)
            ways = {
                "divide s by the root of its largest times its smallest, so that W keeps its size": bare,
                "that is the s of the *largest* error": scales[worst],
                "that is the last s of the grid: the one with the smallest error": scales[-1],
                "that is upside down: columns that meet large inputs are scaled *up*": 1
                / scales[best],
            }
            fits = [words for words, way in ways.items() if not difference(s, way, 1e-3)]
            left = fits if left is None else [words for words in left if words in fits]
        return left

    @check(points=4, title="each ratio's error is that of the outputs, and s is the best one's")
    def test_search(self, submission):
        cases = []
        for rows, width, bits, group in [
            (6, 16, 4, 16),
            (4, 12, 3, 4),
            (5, 10, 3, 4),
            (3, 8, 2, 8),
        ]:
            cases.append((*self.draw(rows, width), bits, group))
        self.compare(submission, cases)

    @check(points=2, title="other grids, inputs that are always 0, inputs all alike")
    def test_edges(self, submission):
        dead = *self.draw(4, 8, dead=(1, 5)), 4, 8
        while min(errors := awq_errors(*dead)[1]) > 0.9 * errors[0]:  # s of ratio 0 says nothing
            dead = *self.draw(4, 8, dead=(1, 5)), 4, 8
        cases = [
            dead,
            (*self.draw(3, 9), 4, 3, 7),
            (*self.draw(3, 6), 3, 6, 1),
        ]
        plain = *self.draw(6, 16), 4, 16
        with as_above(lambda: self.compare(submission, [plain])):
            self.compare(submission, cases)

    @check(points=1, title="ratio 0 leaves every bit as it was, and wins where no ratio gains")
    def test_none(self, submission):
        w, *_ = drawn((4, 8), 4, 8)
        exact = (w / w.abs().amax(1, keepdim=True) * 7).round()  # on the grid: nothing is lost
        mean_abs = torch.rand(8) + 0.5
        h = torch.diag(mean_abs**2)
        plain = *self.draw(6, 16), 4, 16
        with as_above(lambda: self.compare(submission, [plain])):
            got = submission.run(probes.in_a_row, [(exact, mean_abs, h, 4, 8)])
            result = got["calls"][0]["out"]
            expect.that(
                isinstance(result, (list, tuple)) and len(result) == 2, "return s and the errors"
            )
            expect.identical(
                result[0], torch.ones(8), what="s where rounding loses nothing",
                hints=[(result[0], "ratio 0 is s = 1, in every bit, and its error is 0 here: no other one is smaller")],
            )  # fmt: skip
            self.compare(submission, [(*self.draw(4, 8), 4, 8)])


def by_a_factor(got, want):
    """A hint where all numbers of s are off by the same factor."""
    if not isinstance(got, torch.Tensor) or got.shape != want.shape or len(got) < 2:
        return []
    ratio = (got / want).double()
    if not ratio.isfinite().all() or (ratio / ratio.mean() - 1).abs().max() > 1e-3:
        return []
    return [(got, f"all numbers of s are {ratio.mean():.3g} times what they must be")]


class TestSmooth(Exercise):
    """A scale from activations into weights"""

    name = "smooth"
    reference = "minitrain.quantization.plain:smooth"
    hidden = HIDDEN

    def draw(self, width, rows, tokens=5):
        weights = [torch.randn(n, width) * torch.rand(width).add(0.1) for n in rows]
        sizes = torch.exp(2 * torch.randn(width))
        return 0.5 + torch.rand(width), weights, sizes, torch.randn(tokens, width)

    def scale_of(self, weights, max_abs, alpha=0.5, single=None):
        """In float64; `single`: of that linear alone."""
        chosen = weights if single is None else [weights[single]]
        columns = torch.stack([w.double().abs().amax(0) for w in chosen]).amax(0).clamp(min=1e-5)
        return (max_abs.double().clamp(min=1e-5) ** alpha / columns ** (1 - alpha)).float()

    def run(self, submission, cases):
        words = "a linear layer's weight is (outputs, inputs), and s has a number for each input, a column"
        with expect.because({"must match": words}):
            return submission.run(probes.smoothed, cases)

    def compare(self, submission, cases):
        for case, got in zip(cases, self.run(submission, cases)):
            self.is_right(got, *case)

    def is_right(self, got, scale, weights, max_abs, x, alpha=0.5):
        told = f"{len(weights)} linear layers of {len(scale)} inputs, alpha {alpha:g}"
        want = self.scale_of(weights, max_abs, alpha)
        columns = torch.stack([w.abs().amax(0) for w in weights]).amax(0)
        expect.equal(got["s"], want, tol=1e-4, what=f"s ({told})", hints=[
            *by_a_factor(got["s"], want),
            (1 / want, "that is upside down: a large activation makes a large s, which the norm is divided by"),
            (self.scale_of(weights, max_abs, 1 - alpha), "alpha and 1 - alpha have changed places"),
            (self.scale_of(weights, max_abs, alpha, 0), "that is of the first linear layer alone: all read the same x / s, so the largest of all their columns"),
            (self.scale_of(weights, max_abs, alpha, -1), "that is of the last linear layer alone: all read the same x / s, so the largest of all their columns"),
            (max_abs**alpha * columns ** (1 - alpha), "the weights' share is divided by, not multiplied"),
            (max_abs**alpha, "the weights' share is missing: / max|w|^(1 - alpha)"),
            ((max_abs / columns) ** alpha, "that is the whole quotient to the power of alpha: the weights' magnitude has the exponent 1 - alpha"),
        ])  # fmt: skip
        expect.that(got["max_abs"], "`max_abs` was changed: it is the caller's")
        expect.that(
            got["same"] and got["in_place"] and got["leaves"],
            "the parameters must stay the same tensors, leaves that can be trained: change them in place under "
            "`torch.no_grad()`",
        )
        turned = [scale * want, *(w / want for w in weights)]
        for number, (now, given) in enumerate(zip(got["weights"], [scale, *weights])):
            name = (
                "the norm's weight" if number == 0 else f"the weight of linear layer {number - 1}"
            )
            right = given / want if number == 0 else given * want
            expect.equal(now, right, tol=1e-4, what=f"{name} ({told})", hints=[
                (given, f"{name} is as it was: the norm is divided by s, every linear layer's columns are multiplied"),
                (turned[number], "that is the wrong way round: the norm is divided by s, the columns are multiplied"),
            ])  # fmt: skip
        for before, after in zip(got["before"], got["after"]):
            expect.equal(
                after, before, tol=1e-3, what=f"the outputs, which must not change ({told})"
            )

    @check(
        points=3, title="s of the activations and of all layers that read them; the function stays"
    )
    def test_scale(self, submission):
        self.compare(
            submission, [self.draw(8, (4, 6, 6)), self.draw(5, (3,)), self.draw(6, (2, 7), 1)]
        )

    @check(points=1, title="alpha from 0 to 1")
    def test_alpha(self, submission):
        alpha = float(torch.rand(())) * 0.3 + 0.55
        cases = [(*self.draw(8, (4, 5)), a) for a in (alpha, 0.0, 1.0)]
        plain = self.draw(8, (4, 6, 6))
        with as_above(lambda: self.compare(submission, [plain])):
            self.compare(submission, cases)

    @check(points=2, title="channels that are always 0, and columns of zeros")
    def test_zeros(self, submission):
        one, other = self.draw(6, (4, 3)), self.draw(6, (4, 3))
        one[2][1] = 0  # no activation
        for weight in other[1]:
            weight[:, 3] = 0
        plain = self.draw(8, (4, 6, 6))
        with as_above(lambda: self.compare(submission, [plain])):
            found = list(zip([one, other], self.run(submission, [one, other])))
            for case, got in found:
                self.survives_zeros(got, *case)
            for case, got in found:
                self.is_clamped(got, *case)

    def survives_zeros(self, got, _scale, weights, max_abs, _x):
        words = (
            "a channel that is always 0, or a column of zeros, makes s 0 or infinite: clamp max|x| and max|w| from below, "
            "before the powers. Where max|w| is 0, a lower bound for s itself leaves it infinite"
        )
        s, live = got["s"], (max_abs > 0) & (torch.cat(weights) != 0).any(0)
        expect.that(
            isinstance(s, torch.Tensor) and s.isfinite().all() and (s > 0).all(),
            f"s is {expect.show(s)}: {words}",
        )
        for before, after in zip(got["before"], got["after"]):
            expect.equal(after, before, tol=1e-3, what="the outputs, which must not change")
        want = self.scale_of(weights, max_abs)
        expect.equal(s[live], want[live], tol=1e-4, what="s of the other channels")

    def is_clamped(self, got, _scale, weights, max_abs, _x):
        """Of a channel without activations or weights, s is that of magnitudes of 1e-5."""
        dead = (max_abs == 0) | (torch.cat(weights) == 0).all(0)
        ratio = (got["s"] / self.scale_of(weights, max_abs))[dead]
        expect.equal(
            ratio,
            torch.ones_like(ratio),
            tol=1e-3,
            what="s over what it must be, of a channel that is always 0 or of a column of zeros",
            hints=[(ratio, "both magnitudes are clamped to at least 1e-5, before the powers are taken")],
        )  # fmt: skip


class TestFakeQuantize(Exercise):
    """Rounded forward, straight through backward"""

    name = "fake_quantize"
    reference = "minitrain.quantization.plain:fake_quantize"
    hidden = HIDDEN

    def draw(self, shape, bits, over=2.0):
        """w of which some lie outside, without ties; scale (F, 1); a gradient."""
        m = largest(bits)
        scale = 0.1 + torch.rand(shape[0], 1)
        x = (
            torch.randint(-int(over * m) - 2, int(over * m) + 3, shape)
            + 0.8 * torch.rand(shape)
            - 0.4
        )
        return x * scale, scale, bits, torch.randn(shape)

    def cases(self):
        cases = [
            self.draw(*sizes)
            for sizes in (((4, 6), 4), ((3, 9), 3), ((1, 12), 2), ((7, 1), 8, 1.2))
        ]
        cases.append(self.draw((16, 32), 3, 9.0))  # far outside: there the last bit shows
        w, scale, bits, d_out = self.draw((5, 8), 4)
        return [
            *cases,
            (w.mT.contiguous().mT, scale, bits, d_out),
            (0.3 * w.sign() * scale, scale, bits, d_out),
        ]

    def run(self, submission, cases):
        got = submission.run(probes.trained_through, cases)
        refuse_ready_made(got, [case[0] for case in cases])
        for call in got["calls"]:
            expect.that(call["unchanged"], "w or scale was changed: they are the caller's")
        return got["calls"]

    @check(points=2, title="forward: code times scale, bit for bit what is deployed")
    def test_forward(self, submission):
        cases = self.cases()
        for (w, scale, bits, _), got in zip(cases, self.run(submission, cases)):
            m = largest(bits)
            want = (w / scale).round().clamp(-m, m) * scale
            expect.identical(got["out"], want, what=f"what is left of w {tuple(w.shape)} in {bits} bits", hints=[
                ((w / scale).round() * scale, "codes beyond ±m must be clamped"),
                ((w / scale).round().clamp(-m - 1, m) * scale, f"codes go from -{m} to {m}: the lowest one is not used"),
                ((w / scale).round().clamp(-m, m), "those are the codes: times scale"),
                (w, "that is w itself: nothing was rounded"),
                (w + (want - w), "those are the right numbers but for the last bit: w + (rounded - w) is not `rounded` in floats. "
                 "Return the rounded number itself, plus something that is exactly 0"),
            ])  # fmt: skip
        calls = [case[:3] for case in cases[:3]]
        results = submission.run(probes.without_gradient, calls)
        expect.left_alone(results, calls, ["w", "scale"])

    @check(points=3, title="backward: the gradient as it is where no code was clamped, else 0")
    def test_gradient(self, submission):
        cases = self.cases()
        for (w, scale, bits, d_out), got in zip(cases, self.run(submission, cases)):
            self.is_straight(got["gradient"], w, scale, bits, d_out)
        case = self.draw((4, 6), 4)
        (got,) = self.run(submission, [(*case, True)])
        self.is_straight(got["gradient"], *case)
        expect.that(
            not got["of_scale"],
            "`scale` asked for a gradient and was given one: it gets none, so code times scale is made without a graph",
        )

    def is_straight(self, got, w, scale, bits, d_out):
        m = largest(bits)
        inside = (w / scale).round().abs() <= m
        expect.that(got is not None, "w got no gradient at all: something has cut it off the graph")
        expect.equal(got, d_out * inside, what=f"the gradient of w {tuple(w.shape)}, {bits} bits", hints=[
            (d_out, "that passes outside too: where a code was clamped the gradient is 0, a step of w changes nothing"),
            (d_out * ((w / scale).abs() <= m), "that is 0 beyond m scales: up to m + 1/2 a weight is rounded to code m, not clamped"),
            (d_out * ((w / scale).round().abs() < m), "that is 0 for code m, too: m is a code, and not clamped"),
            (0 * d_out, "that is 0 everywhere, round's own gradient: nothing would ever move. Let it pass straight through"),
            (d_out * ~inside, "that is the wrong way round: 1 inside, 0 outside"),
            (d_out * inside / scale, "that is divided by the scale: the division and the multiplication cancel"),
            (d_out * inside * scale, "that is multiplied by the scale: the division and the multiplication cancel"),
            (inside.float(), "that is 1 and 0: it must be multiplied by the gradient that arrives"),
        ])  # fmt: skip

    @check(points=2, title="what waits for backward is at most one byte a weight, beside w itself")
    def test_kept(self, submission):
        case = self.draw((64, 128), 4)
        (got,) = self.run(submission, [case])
        with as_above(lambda: self.is_straight(got["gradient"], *case)):
            self.is_straight(got["gradient"], *case)
        count = case[0].numel()
        expect.that(
            got["kept_bytes"] <= count,
            f"{got['kept_bytes']:,} bytes wait for backward for {count:,} weights: a mask of bools, 1 byte a weight, is "
            "all that backward needs",
        )


def by(table, *columns):
    return {tuple(row[column] for column in columns): row for row in table}


def found(rows, *key):
    expect.that(key in rows, f"there is no row of {key}")
    return rows[key]


class TestFormats(Experiment):
    """Bits and groups, rounded to nearest"""

    name = "formats"
    rests_on = ("quantize_absmax", "quantize_zero_point")

    @check(points=2, title="8 bits cost nothing, and each bit less costs more")
    def test_bits(self, table):
        rows = by(table, "tiling", "bits")
        for tiling in ("tensor", "row", "group"):
            losses = [found(rows, tiling, bits)["above"] for bits in (8, 4, 3, 2)]
            whole = found(rows, "float", 32)["above"]
            expect.that(
                abs(losses[0] - whole) < 0.01,
                f"{tiling}, 8 bits: {losses[0]:.4f} above the floor, the float model {whole:.4f}",
            )
            expect.that(
                all(one < other + 0.003 for one, other in pairwise(losses)),
                f"{tiling}: {', '.join(f'{v:.4f}' for v in losses)} nats above the floor with 8, 4, 3, 2 bits",
            )

    @check(
        points=2,
        title="a scale a row beats one a matrix, groups beat rows; their bytes are counted",
    )
    def test_tilings(self, table):
        rows = by(table, "tiling", "bits")
        for bits in (3, 2):
            tensor, row, group = (found(rows, t, bits)["above"] for t in ("tensor", "row", "group"))
            expect.that(
                group < row + 0.003 and row < tensor + 0.003,
                f"{bits} bits: {tensor:.3f} with a scale a matrix, {row:.3f} a row, {group:.3f} a group",
            )
        for bits in (8, 4, 3, 2):
            held = found(rows, "group", bits)["bits_per_weight"]
            expect.close(
                held,
                bits + 32 / 32,
                tol=0.002,
                what=f"bits a weight of {bits} bits in groups of 32",
            )


class TestOutliers(Experiment):
    """Outliers planted, four ways to meet them"""

    name = "outliers"
    rests_on = ("llm_int8", "smooth")

    @check(points=1, title="the function itself does not change")
    def test_function(self, table):
        whole = [row["float"] for row in table]
        expect.that(len(whole) >= 4, f"{len(whole)} factors: at least 4")
        expect.that(
            max(whole) - min(whole) < 1e-3,
            f"the float model's loss goes from {min(whole):.5f} to {max(whole):.5f}: planted outliers change no output",
        )

    @check(
        points=4, title="one scale fails first, one a token later; LLM.int8() and SmoothQuant hold"
    )
    def test_order(self, table):
        row = max((r for r in table if r["factor"] <= 100), key=lambda r: r["factor"])
        cost = {
            name: row[name] - row["float"]
            for name in ("per_tensor", "per_token", "llm_int8", "smooth")
        }
        told = ", ".join(f"{name} {value:.4f}" for name, value in cost.items())
        expect.that(
            cost["per_tensor"] > 5 * cost["per_token"] and cost["per_tensor"] > 0.2,
            f"outliers times {row['factor']:g} cost: {told}",
        )
        expect.that(
            cost["per_token"] > 2 * cost["llm_int8"] and cost["smooth"] < 0.02,
            f"outliers times {row['factor']:g} cost: {told}",
        )


class TestMethods(Experiment):
    """Four ways to round weights, and two tasks"""

    name = "methods"
    rests_on = ("gptq", "awq")

    def costs(self, table):
        rows = by(table, "method", "bits")
        return {key: row["above"] for key, row in rows.items()}

    @check(
        points=4,
        title="3 bits: GPTQ and AWQ each lose less than rounding to nearest, both together least",
    )
    def test_order(self, table):
        above = self.costs(table)
        rtn, gptq, awq, both = (
            found(above, m, 3) for m in ("nearest", "GPTQ", "AWQ", "AWQ + GPTQ")
        )
        told = f"3 bits, nats above the floor: nearest {rtn:.4f}, GPTQ {gptq:.4f}, AWQ {awq:.4f}, both {both:.4f}"
        expect.that(gptq < rtn and awq < rtn, told)
        expect.that(both < min(gptq, awq) + 0.003, told)

    @check(points=2, title="the tasks fall with the bits: accuracy, and stories told consistently")
    def test_tasks(self, table):
        rows = by(table, "method", "bits")
        whole, two = found(rows, "float", 32), found(rows, "nearest", 2)
        for column in ("accuracy", "consistent"):
            expect.that(
                0 <= two[column] < whole[column] <= 1,
                f"{column}: {whole[column]:.3f} of the float model, {two[column]:.3f} with 2 bits rounded to nearest",
            )


class TestLayers(Experiment):
    """Which layer needs the bits"""

    name = "layers"
    rests_on = ("quantize_absmax",)

    @check(
        points=3,
        title="each layer alone: fewer bits cost more",
    )
    def test_layers(self, table):
        expect.that(len(table) >= 14, f"{len(table)} layers, and the model has 14")
        costs = [(row["int2"], row["int3"]) for row in table]
        worse = sum(two > three for two, three in costs)
        expect.that(
            worse >= 0.8 * len(costs),
            f"in {worse} of {len(costs)} layers 2 bits cost more than 3: round one layer alone, all others whole",
        )


class TestQat(Experiment):
    """Training that sees the rounding"""

    name = "qat"
    rests_on = ("fake_quantize", "gptq")

    @check(points=2, title="3 bits: training with the rounding beats the best rounding afterwards")
    def test_beats(self, table):
        above = {row["way"]: row["above"] for row in table}
        for way in ("GPTQ", "more training, GPTQ", "QAT"):
            expect.that(way in above, f"there is no row '{way}'")
        told = ", ".join(f"{way} {value:.4f}" for way, value in above.items())
        expect.that(above["QAT"] < above["GPTQ"] and above["QAT"] < above["nearest"], told)

    @check(points=2, title="what is deployed is what was trained, bit for bit")
    def test_deployed(self, table):
        above = {row["way"]: row["above"] for row in table}
        expect.that(
            "QAT" in above and above.get("QAT, deployed") == above["QAT"],
            f"trained: {above.get('QAT')}, deployed: {above.get('QAT, deployed')}: the same codes and scales",
        )


class TestSpeed(Experiment):
    """Bytes and seconds of packed kernels"""

    name = "speed"
    rests_on = ("quantize_absmax",)

    @check(
        points=3,
        title="bytes are what the formats say, for one token and for 32",
    )
    def test_bytes(self, table):
        rows = by(table, "format", "tokens")
        for tokens in (1, 32):
            sixteen = found(rows, "bfloat16", tokens)
            for name, share in (("int8-row", 0.5), ("int4-g64", 0.28125)):
                row = found(rows, name, tokens)
                # 8.02 and 4.25 or 4.5 bits a weight: kernels hold their scales in 16 bits.
                expect.that(
                    0.9 * share < row["bytes"] / sixteen["bytes"] < 1.1 * share,
                    f"{name}: {row['bytes']:,} bytes, bfloat16 {sixteen['bytes']:,}",
                )
                expect.that(
                    row["seconds"] > 0, f"{name}, {tokens} tokens: {row['seconds']} seconds"
                )


class TestClosed(Question):
    """How much GPTQ wins back"""

    name = "closed"
    rests_on = ("methods",)

    @check(
        points=5,
        title="the part of nearest rounding's loss that GPTQ takes back, 3 bits, in percent",
    )
    def test_value(self, value, records):
        rows = by(expect.recorded(records, "methods"), "method", "bits")
        whole, rtn, gptq = (
            found(rows, *key)["above"] for key in (("float", 32), ("nearest", 3), ("GPTQ", 3))
        )
        want = 100 * (rtn - gptq) / (rtn - whole)
        of_floor = 100 * (rtn - gptq) / rtn
        words = "100 · (nearest - GPTQ) / (nearest - float)"
        if abs(value - of_floor) <= 0.3:
            words = "that is of the whole distance to the floor: what rounding has added is nearest - float"
        elif abs(value - (100 - want)) <= 0.3:
            words = "that is what is left: the part that is taken back"
        elif abs(value - want / 100) <= 0.005:
            words = "that is a share: in percent it is 100 times as much"
        expect.that(abs(value - want) <= 0.5 + 0.02 * abs(want), f"got {value:.3g}: {words}")


class TestFirstSpoiled(Question):
    """Where one scale a token fails"""

    name = "first_spoiled"
    rests_on = ("outliers",)

    @check(
        points=5, title="the smallest factor at which one scale a token costs more than 0.05 nats"
    )
    def test_value(self, value, records):
        rows = expect.recorded(records, "outliers")
        spoiled = [row["factor"] for row in rows if row["per_token"] - row["float"] > 0.05]
        expect.that(spoiled, "no factor of your table costs that much: record larger ones")
        tensor = [row["factor"] for row in rows if row["per_tensor"] - row["float"] > 0.05]
        expect.close(value, min(spoiled), tol=1e-6, what="the factor", hints=[
            (max(spoiled), "that is the largest of the table: the smallest that costs more than 0.05"),
            (min(tensor, default=-1), "that is of one scale for all: here each token has its own"),
        ])  # fmt: skip


class TestDearest(Question):
    """Where a byte is worth the most"""

    name = "dearest"
    rests_on = ("layers",)

    @check(points=5, title="the layer whose step from 2 to 3 bits saves the most loss a byte")
    def test_value(self, value, records):
        rows = expect.recorded(records, "layers")
        worth = {row["layer"]: (row["int2"] - row["int3"]) / row["bytes"] for row in rows}
        plain = {row["layer"]: row["int2"] - row["int3"] for row in rows}
        expect.among(value, worth)
        best = max(worth, key=worth.get)
        words = "for each layer (int2 - int3) / bytes, and the largest of them"
        if value == max(plain, key=plain.get):
            words = "that one loses the most, but it has more bytes: divide by them"
        expect.that(value == best, f"got {value}: {words}")
