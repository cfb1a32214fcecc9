"""The checks of lab e08: quantization, graded code by code where codes are the point."""

from __future__ import annotations

from itertools import pairwise

import torch

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import difference
from minitrain.lab.grading.variants import hints as hints_of
from minitrain.lab.grading.variants import variant

from .probes import e08_quantization as probes

LAB = "e08_quantization"
SIZES = {
    "cpu": {
        "width": 64, "layers": 2, "batch": 16, "length": 64, "corpus": 1_000_000, "tested": 25_000,
        "steps": 300, "tuning": 100, "twins": 400, "matrix": 4096, "repeats": 9,
    },
    "test": {
        "corpus": 400_000, "tested": 8_000, "steps": 130, "tuning": 60, "twins": 40, "matrix": 1024,
        "repeats": 3,
    },
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
SHORT = {("unflatten", "invalid for input", "reshape", "view"): OVER}
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
    count = sum(tensor.numel() for tensor in least)
    expect.that(
        not found,
        f"PyTorch's own {', '.join(found)} has done it: ready-made quantization is not the exercise. Divide, round "
        "and clamp yourself",
    )
    expect.that(
        got["numbers"] >= count,
        f"for {count:,} numbers PyTorch was seen to compute {got['numbers']:,}: compute with PyTorch's own operations, in "
        "its sight",
    )


def outs_of(submission, cases, names, own=None):
    """What came of each call: as many tensors as names; `own`: the names of its arguments."""
    got = submission.run(probes.in_a_row, cases)
    refuse_ready_made(got, [case[0] for case in cases])
    outs = [call["out"] for call in got["calls"]]
    for out in outs:
        expect.that(
            isinstance(out, (list, tuple)) and len(out) == len(names),
            f"got {expect.show(out)}: return {', '.join(names)}",
        )
    if own:
        expect.left_alone(got["calls"], cases, own)
    return outs


def live(scale, codes):
    words = f"the scales {expect.show(scale)} hold one that is not above 0. For {FOR_ZEROS}"
    expect.that((scale > 0).all() and scale.isfinite().all(), words)
    return codes


TILES = "tiles.abs().amax(dim=2) / m"
ROUND = "(tiles / scale[:, :, None]).round()"
CUT = "those are cut, toward 0: round to the nearest"
ABSMAX = [
    ((TILES, "tiles.abs().amax(dim=2) / (m + 1)"), "that is divided by m + 1: the largest magnitude becomes code m, so divide by m"),
    ((TILES, "tiles.abs().amax(dim=2) / (m + 0.5)"), "that is divided by m + 1/2: the largest magnitude becomes code m, so divide by m"),
    ((TILES, "tiles.abs().amax(dim=2) / (2 * m + 1)"), "that is divided by all codes: a sign takes half of them"),
    ((TILES, "tiles.abs().amax(dim=2)"), "that is the largest magnitude itself: divide it by m"),
    ((TILES, "m / tiles.abs().amax(dim=2)"), "that is upside down: scale = largest magnitude / m"),
    ((TILES, "tiles.abs().amax(dim=(1, 2))[:, None].expand(tiles.shape[:2]) / m"), "that is one scale a row: one for each group"),
    ((TILES, "tiles.abs().amax().expand(tiles.shape[:2]) / m"), "that is one scale for all: one for each group"),
    ((TILES, "tiles.amax(dim=2) / m"), "the largest *magnitude* sets the scale, of negative numbers too: `.abs()` first"),
    ((TILES, "tiles.amax(dim=2).abs() / m"), "the largest *magnitude* sets the scale: `.abs()` comes before `.amax()`"),
    (("(0, -width % group)", "(-width % group, 0)"), "those are groups counted from the row's end, so that the first one is the smaller: it is the last"),
    ((TILES, "torch.stack([part.abs().amax(1) for part in w.chunk(tiles.shape[1], dim=1)], dim=1) / m"), "those are groups of one size, as `torch.chunk` makes them: each has `group` columns, the last what is left"),
    ((ROUND, "(tiles / scale[:, :, None]).trunc()"), CUT),
    ((ROUND, "(tiles / scale[:, :, None]).floor()"), "those are rounded down: round to the nearest"),
    ((".clamp(-m, m)", ".clamp(-m, m) + m"), "those begin at 0: codes have a sign here, from -m to m"),
    ((".to(torch.int8), scale", ", scale"), "the codes are still floats: `.to(torch.int8)`"),
]  # fmt: skip


class TestQuantizeAbsmax(Exercise):
    """Symmetric integers, a scale a group"""

    name = "quantize_absmax"
    reference = "minitrain.quantization.plain:quantize_absmax"
    hidden = HIDDEN

    def compare(self, submission, cases):
        """cases: (w, bits, group, codes, scale)."""
        calls = [case[:3] for case in cases]
        outs = outs_of(submission, calls, ("codes", "scale"), ["w"])
        for out, (w, bits, group, codes, scale) in zip(outs, cases):
            told = f"w {tuple(w.shape)}, {bits} bits, groups of {group}"
            wrong = list(hints_of(self.reference, ABSMAX, lambda f, c=(w, bits, group): f(*c)))
            hints = [(one[1], words) for one, words in wrong]
            is_raised = out[1].shape == scale.shape and out[1].min() > scale.min()
            words = f"scales below {float(out[1].min()):.3g} were raised to it, or it was added to them: only a group of zeros needs one"
            hints += [(out[1], words)] * is_raised
            expect.equal(out[1], scale, what=f"scale ({told})", hints=hints)
            ratio = (out[1] / scale)[scale > 0]
            hints = [(ratio, words)] * is_raised
            what = f"each scale over what it must be ({told})"
            expect.equal(ratio, torch.ones_like(ratio), what=what, hints=hints)
            hints = [(one[0], words) for one, words in wrong]
            expect.equal(out[0], codes, what=f"codes ({told})", hints=hints)

    def drawn_cases(self, *shapes):
        """shapes: (shape, bits, group, size)."""
        found = []
        for shape, bits, group, *size in shapes:
            w, codes, scale = drawn(shape, bits, group, *size)
            found.append((w, bits, group, codes, scale))
        return found

    @check(
        points=3, title="one scale a row: the largest magnitude becomes code m, others the nearest"
    )
    def test_rows(self, submission):
        shapes = [((5, 8), 4, 8), ((3, 16), 8, 16, 1e-3), ((1, 7), 3, 7, 1e4), ((4, 5), 2, 5)]
        self.compare(submission, self.drawn_cases(*shapes))

    @check(points=3, title="one scale a group, also where groups do not divide the row")
    def test_groups(self, submission):
        shapes = [((4, 12), 4, 4), ((3, 10), 3, 4), ((3, 9), 4, 4), ((2, 7), 8, 3), ((5, 4), 4, 16)]
        with expect.because(SHORT):
            self.compare(submission, self.drawn_cases(*shapes, ((1, 9), 4, 2)))

    @check(
        points=2,
        title="a group of zeros gives zeros; tiny and huge weights have scales of their size",
    )
    def test_edges(self, submission):
        w, codes, _ = drawn((2, 8), 4, 4)
        w[0, :4], codes[0, :4] = 0, 0
        zeros = torch.zeros(2, 8)
        outs = outs_of(submission, [(zeros, 4, 4), (w, 4, 4)], ("codes", "scale"))
        for out, want in zip(outs, (zeros.to(torch.int8), codes)):
            expect.equal(live(out[1], out[0]), want, what="codes with a group of zeros")
        self.compare(submission, self.drawn_cases(((2, 6), 8, 3, 1e-30), ((2, 6), 4, 6, 1e30)))


LOW = "tiles.amin(dim=2).clamp(max=0), tiles.amax(dim=2).clamp(min=0)"
RANGE = "(high - low) / n"
ZERO = "(-low / scale).round()"
ZERO_POINT = [
    ((LOW, "tiles.amin(dim=2), tiles.amax(dim=2)", ".byte(), scale, zero.byte()", ".clamp(0, 255).byte(), scale, zero.clamp(0, 255).byte()"),
     "the range must hold 0, or 0 has no code: smallest at most 0, largest at least 0"),
    ((RANGE, "(high - low) / (n + 1)"), "between so many codes there are 2^b - 1 steps"),
    ((RANGE, "torch.maximum(high, -low) / (n // 2)"), "that is absmax's scale: (largest - smallest) / (2^b - 1)"),
    ((RANGE, "torch.maximum(high, -low) / n"), "that is of the largest magnitude: the whole range, largest - smallest, has 2^b - 1 steps"),
    (("zero.byte()", "zero"), "it is a code: `.byte()`"),
    (("zero.byte()", "zero.int()"), "it is a code: `.byte()`"),
    ((ZERO, "(-low / scale).trunc()"), "that is cut: zero is the *nearest* code, round it"),
    ((ZERO, "(high / scale).round()"), "that is counted from the other end: -smallest / scale"),
    ((ROUND, "(tiles / scale[:, :, None]).trunc()"), CUT),
    ((" + zero[:, :, None]", " - zero[:, :, None]"), "zero is subtracted: it is added, so that 0 has the code `zero`"),
    ((" + zero[:, :, None]", ""), "zero is missing: add it, so that 0 has the code `zero`"),
    ((f"({ROUND} + zero[:, :, None])", "((tiles - low[:, :, None]) / scale[:, :, None]).round()"), "w - smallest was rounded, and `zero` apart from it: w / s is rounded, and the whole number `zero` added"),
    (("[:, :width].byte()", "[:, :width]"), "the codes are still floats: `.byte()`"),
]  # fmt: skip


def zero_points(w, bits, group):
    """Codes, scale and zero, in float64, group by group."""
    codes, scale, zero = variant(TestQuantizeZeroPoint.reference)(w.double(), bits, group)
    return codes, torch.where((w != 0).any(), scale, 1.0).float(), zero


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
    names = ("codes", "scale", "zero")

    def draw(self, shape, bits, group, move=0.0, size=1.0, fits=lambda low, high, scale: True):
        """w whose groups lie to one side by `move`, without ties; fits: asked of each draw."""

        def ends(w):
            _, scale, _ = zero_points(w, bits, group)
            parts = [w[:, part] for part in cut(shape[1], group)]
            low, high = (torch.stack([f(p, 1) for p in parts], 1) for f in (torch.amin, torch.amax))
            return low, high, scale

        def ratios(w):
            low, _, scale = ends(w)
            return w / spread(scale, group, shape[1]), -low.clamp(max=0) / scale

        while True:
            w = far_from_ties(lambda: size * (torch.randn(shape) + move), ratios)
            if fits(*ends(w)):
                return w

    def both_signs(self, *shape):
        """As `draw`, and each group has both signs: none is of one sign by chance."""
        return self.draw(*shape, fits=lambda low, high, scale: (low < 0).all() and (high > 0).all())

    def compare(self, submission, cases):
        for case, out in zip(cases, outs_of(submission, cases, self.names, ["w"])):
            w, bits, group = case
            wants = zero_points(*case)
            told = f"w {tuple(w.shape)} from {w.min():.3g} to {w.max():.3g}, {bits} bits, groups of {group}"
            wrong = list(hints_of(self.reference, ZERO_POINT, lambda f, case=case: f(*case)))
            for place in (1, 2, 0):
                hints = [(one[place], words) for one, words in wrong]
                what = f"{self.names[place]} ({told})"
                expect.equal(out[place], wants[place], what=what, hints=hints)
                if place == 1:
                    what = f"each scale over what it must be ({told})"
                    expect.equal(out[1] / wants[1], torch.ones_like(wants[1]), what=what)

    @check(points=4, title="the range from smallest to largest has 2^b - 1 steps; 0 has a code")
    def test_codes(self, submission):
        shapes = [
            ((5, 8), 4, 8, 0.5, 1.0),
            ((3, 16), 8, 16, -0.3, 1e-3),
            ((4, 9), 3, 9, 0.2, 1e3),
            ((1, 6), 2, 6, 0.0, 1.0),
        ]
        self.compare(submission, [(self.both_signs(*shape), *shape[1:3]) for shape in shapes])

    @check(points=2, title="groups of one sign only: 0 is inside, exactly")
    def test_one_sign(self, submission):
        shapes = [((4, 8), 4, 4, 6.0), ((3, 8), 4, 8, -6.0), ((2, 5), 8, 5, 9.0)]
        # no zero that is cut, not rounded, falls below the last code: that is another check's
        whole = lambda low, high, scale: not (-low.clamp(max=0) / scale).remainder(1).any()  # noqa: E731
        self.compare(submission, [(self.draw(*s, fits=whole), *s[1:3]) for s in shapes])

    @check(points=2, title="groups that do not divide the row, and groups of zeros")
    def test_edges(self, submission):
        shapes = [((3, 10), 4, 4, 0.4), ((5, 4), 8, 16, 0.1)]
        cases = [(self.both_signs(*shape), *shape[1:3]) for shape in shapes]
        with expect.because(SHORT):
            self.compare(submission, [*cases, (self.draw((2, 7), 3, 3, 6.0), 3, 3)])
        ((codes, scale, zero),) = outs_of(submission, [(torch.zeros(2, 6), 4, 3)], self.names)
        want = zero.repeat_interleave(3, 1)
        expect.equal(live(scale, codes), want, what="codes of zeros, which are the code `zero`")
        self.both_ends(submission)

    def both_ends(self, submission):
        """Where largest = -smallest, w/s and z are halves, and both may round up."""
        w = torch.randn(64, 6).clamp(-2, 2)
        w[:, 1] = 2 + torch.rand(64)
        w[:, 4] = -w[:, 1]
        cases = [(w, bits, 6) for bits in (4, 8)]
        for (_, bits, _), out in zip(cases, outs_of(submission, cases, self.names)):
            codes, scale, zero = out
            off = ((codes.double() - zero.double()) * scale.double() - w).abs() > 0.51 * scale
            expect.that(
                int(codes.max()) < 2**bits and not off.any(),
                f"in a group from -a to a, with {bits} bits, a code is {int(codes.max())} or a weight is off by "
                f"more than half a step: w/s and z may both round up, and codes end at {2**bits - 1}: clamp them",
            )


X_CODES = "x_codes = (regular / x_scale)"
OWN = "regular.abs().amax(dim=1, keepdim=True)"
INT8 = [
    ((X_CODES, "x_codes = (x / x_scale)"), "codes of outliers went into `multiply`, too: make those columns 0 there, or leave them out"),
    (("x.masked_fill(outlier, 0)", "x"), "codes of outliers went into `multiply`, too: make those columns 0 there, or leave them out"),
    (("x.masked_fill(outlier, 0)", "x.masked_fill(x.abs() >= threshold, 0)"), "the large numbers alone were taken out, and a column is taken out whole"),
    ((">= threshold", "> threshold"), "a column whose largest magnitude is the threshold itself reaches it, too: `>=`"),
    (("x.abs().amax(dim=0) >=", "x.amax(dim=0) >="), "it is the largest *magnitude* that reaches it, of negative numbers too: `.abs()`"),
    ((OWN, "x.abs().amax(dim=1, keepdim=True)"), "the outliers have set the scales: take the largest magnitude of each token *without* them"),
    ((OWN, "regular.abs().amax().expand(len(x), 1)"), "that is one scale for all tokens: each token has its own"),
    ((X_CODES, "x_codes = (regular / (regular.abs().amax(dim=0) / 127).clamp(min=1e-30))"), "that is one scale a column: each token, a row of x, has its own"),
    ((X_CODES, "x_codes = (regular * 127 / threshold)"), "that is the threshold over 127 as every token's scale: it is a token's own largest ordinary number over 127"),
    (("return y + x[:, outlier] @ (codes[:, outlier] * scale).t()", "return y"), "the outliers' columns are missing: add their product in floating point"),
    (("(codes[:, outlier] * scale).t()", "codes[:, outlier].float().t()"), "the outliers' product lacks W's scale"),
    (("* x_scale * scale.t()", "* 1.0"), "those are bare integers: multiply by the scales of x and of W"),
]  # fmt: skip


class TestLlmInt8(Exercise):
    """Int8 products beside a few exact columns"""

    name = "llm_int8"
    reference = "minitrain.quantization.plain:llm_int8"
    hidden = HIDDEN

    def draw(self, tokens, width, features, outliers=(), negative=False):
        """x (T, D) without ties; the columns `outliers` are 6 and more."""
        x_codes, offsets = drawn_codes((tokens, width), 8, width)
        sizes = 0.01 + 0.02 * torch.rand(tokens, 1, dtype=torch.float64)
        x = ((x_codes + offsets) * sizes).float()
        for number, column in enumerate(outliers):
            x[:, column] = 0.3 * torch.randn(tokens)
            large = (-1 if negative else 1) * (20.0 + 10 * number)
            x[int(torch.randint(tokens, ())), column] = large
        regular = torch.ones(width, dtype=torch.bool)
        regular[list(outliers)] = False
        rest = x[:, regular]
        rest = rest / rest.abs().amax(1, keepdim=True) * 127  # again without ties
        clear = torch.where((rest.remainder(1) - 0.5).abs() < 0.02, rest + 0.1 * -rest.sign(), rest)
        x[:, regular] = clear * (0.01 + 0.02 * torch.rand(tokens, 1))
        codes = torch.randint(-127, 128, (features, width), dtype=torch.int8)
        return x, codes, 0.001 + 0.01 * torch.rand(features, 1)

    def compare(self, submission, cases):
        """A check's integer unit adds something to each sum: nobody has it who does without them. A
        token without ordinary numbers has no scale that counts."""
        calls = []
        for x, codes, scale, *more in cases:
            regular = x.masked_fill(x.abs().amax(0) >= (more or [6.0])[0], 0)
            extra = torch.randint(-900, 900, (len(x), len(codes))) * regular.any(1, keepdim=True)
            calls.append((x, codes, scale, extra, *more))
        got = submission.run(probes.multiplied, calls)
        refuse_ready_made(got, [case[0] for case in cases])
        for call, one, notes in zip(calls, got["calls"], got["notes"]):
            self.is_right(one["out"], notes, call)
        expect.left_alone(got["calls"], calls, ["x", "codes", "scale"])

    def is_right(self, out, notes, call):
        x, threshold = call[0], (*call, 6.0)[4]
        outlier = x.abs().amax(0) >= threshold
        expect.that(
            len(notes) == 1,
            f"`multiply` was called {len(notes)} times, where {int(outlier.sum())} of {x.shape[1]} columns are "
            "outliers'"
            + ("; it was never called: the integer units have nothing to do" * (not notes))
            + ": once for all ordinary columns, whatever x holds, also where every column is an outlier's",
        )
        words = f"`multiply` was given {notes[0]['dtypes']}: both are int8, a byte a number"
        expect.that(notes[0]["dtypes"] == ["torch.int8"] * 2, words)

        def sent(f):
            found = probes.multiplied(f, [call])
            return found["notes"][0][0]["a"], found["calls"][0]["out"]

        a = notes[0]["a"]
        wrong = list(hints_of(self.reference, INT8, sent))
        want, y = sent(variant(self.reference))
        has_all = a.shape[1] == x.shape[1]  # else the outliers' columns were left out
        kept = slice(None) if has_all else ~outlier
        what = f"the codes of x {tuple(x.shape)} that went into `multiply`, threshold {threshold:g}"
        hints = [(one[0][:, kept], words) for one, words in wrong]
        expect.equal(a, want[:, kept], what=what, hints=hints)
        _, bare = sent(lambda x, codes, scale, multiply, *more: variant(self.reference)(
            x, codes, scale, lambda a, b: multiply(a, b) - call[3], *more
        ))  # fmt: skip
        words = "`multiply` was called, and y is not made of what it returned: this check's adds something to each sum"
        hints = [(bare, words), *((one[1], text) for one, text in wrong)]
        expect.equal(out, y, tol=1e-4, what="y", hints=hints)

    @check(
        points=3, title="no outlier: int8 products, each token and each row of W with its own scale"
    )
    def test_plain(self, submission):
        cases = [self.draw(*sizes) for sizes in ((6, 12, 5), (1, 8, 3), (9, 4, 1))]
        x, codes, scale = self.draw(5, 10, 4)
        x[2] = 0  # a token of zeros
        cases += [(x, codes, scale), (*self.draw(4, 9, 6, outliers=(3,)), float("inf"))]
        with expect.because({"nan": FOR_ZEROS}):
            self.compare(submission, cases)

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
        self.compare(submission, cases)

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
        self.compare(submission, cases)


DIAGONAL = "diagonal, dead = h.diagonal(), h.diagonal() == 0"
DAMPED = "damping * diagonal.mean()"
FACTOR = "torch.linalg.cholesky(torch.linalg.inv(h), upper=True)"
FRESH = "scales.append(quantize_absmax(w[:, first:end].float(), bits, group)[1])"
BEYOND = "w[:, stop:] - errors @ upper[start:stop, stop:]"
ANEW = "part, errors = w[:, start:stop].clone()"
COLUMN = "column, own = part[:, j - start], scales[-1][:, 0].double()"
IN_ITS_BLOCK = "the errors of a block stay in it: what is beyond the block must get them too, by one matmul after it"
OVER_A_START = (
    "end = min(first + group, width)", "if first:\n            break\n        end = width", FRESH, "pass",
    COLUMN, "if j % group == 0:\n                    now = torch.cat([w[:, :start], part, w[:, stop:]], dim=1)[:, j : j + group]\n"
    f"                    scales.append(quantize_absmax(now.float(), bits, group)[1])\n                {COLUMN}",
)  # fmt: skip
GPTQ = [
    (("part -= torch.outer(error, upper[j, start:stop])", "pass", BEYOND, "w[:, stop:]"), "that is rounding to nearest: after each column the ones to come take up its error"),
    ((DIAGONAL, f"original = w\n    {DIAGONAL}", FRESH, FRESH.replace("(w[", "(original[")), "the scales of a group come from the weights as they were: fit them when its first column comes, on weights that hold every correction so far"),
    ((" / upper[j, j]", ""), "the error must be divided by U[j, j] before it is spread: e = (w_j - ŵ_j) / U[j, j]"),
    ((BEYOND, "w[:, stop:]"), IN_ITS_BLOCK),
    ((*OVER_A_START, BEYOND, "w[:, stop:]"), IN_ITS_BLOCK),
    (OVER_A_START, "a block has run over a group's start: the group's scale was fitted on columns behind the block that still lack its errors. End blocks where a group ends"),
    ((FACTOR, "torch.linalg.inv(h)"), "that is with the inverse of H itself, the same for all columns. Row j of its Cholesky factor U is of what is left of H from column j on"),
    ((FACTOR, "torch.linalg.cholesky(h, upper=True)"), "that is with the Cholesky factor of H: U is that of its inverse"),
    ((DAMPED, "damping * diagonal"), "each number of the diagonal was damped by its own: all by damping · the mean of the diagonal"),
    (("diagonal.sum() / (~dead).sum()", "diagonal.mean()"), "columns whose input was always 0 were given the mean of all: the mean of the others, of which none is 0"),
    ((DIAGONAL, f"early = h.diagonal().mean()\n    {DIAGONAL}", DAMPED, "damping * early"), "the damping comes of the diagonal's mean with the zeros of inputs that were always 0: give them theirs first"),
    ((DIAGONAL, f"{DIAGONAL}\n    w = w.masked_fill(dead, 0)"), "the weights of inputs that were always 0 were made 0: they are rounded like all others, only H's diagonal is given a number for them"),
    ((f"{BEYOND}]", "w[:, stop:end] - errors @ upper[start:stop, stop:end], w[:, end:]]"), "the errors of a group stay in it: after a block all columns beyond it get them, to the end of the row"),
    ((ANEW, f"scales[-1] = quantize_absmax(w[:, first:end].float(), bits, group)[1]\n            {ANEW}"), "a group's scale was fitted again in each of its blocks: it is fitted once, when its first column comes"),
    (("(column / own).round().clamp(-m, m)", "(column / own).round()"), "codes go from -m to m: the errors of columns before it may make a weight larger than any that the scale was fitted to, so clamp its code"),
    ((f"diagonal += {DAMPED}", "pass"), "the damping is missing: add damping · mean of the diagonal to the diagonal"),
]  # fmt: skip


def margin_of(w, h, bits, group, damping=0.01):
    """How near to a tie a column comes, by the inverse of what is left of H: no factor, no blocks."""
    w, h, m = w.double().clone(), h.double().clone(), largest(bits)
    dead, diagonal, nearest = h.diagonal() == 0, h.diagonal(), []
    diagonal[dead] = diagonal[~dead].mean()
    diagonal += damping * diagonal.mean()
    for j in range(w.shape[1]):
        if j % group == 0:
            scale = (w[:, j : j + group].abs().amax(1) / m).clamp(min=1e-38)
        x, left = w[:, j] / scale, torch.linalg.inv(h[j:, j:])
        nearest.append((x.abs() + 0.5).remainder(1).where(x.abs() < m + 0.4, 0.5))
        error = (w[:, j] - x.round().clamp(-m, m) * scale) / left[0, 0]
        w[:, j:] -= torch.outer(error, left[0])
    close = torch.stack(nearest)
    return torch.minimum(close, 1 - close).min().item()


def correlated(width):
    """X^T X / T of inputs that know of one another, (D, D)."""
    x = torch.randn(4 * width, width) @ (torch.eye(width) + 0.5 * torch.randn(width, width))
    return (x.t() @ x / len(x)).double()


class TestGptq(Exercise):
    """Rounding that makes up for its errors"""

    name = "gptq"
    reference = "minitrain.quantization.plain:gptq"
    hidden = HIDDEN

    def draw(self, rows, width, bits, group, block=128, damping=0.01, dead=(), unlike=()):
        """A call of which no column comes near a tie; unlike: mistakes whose codes are others."""
        while True:
            w, h = torch.randn(rows, width), correlated(width)
            h[list(dead)], h[:, list(dead)] = 0, 0
            call = w, h, bits, group, block, damping
            codes = variant(self.reference)(*call)[0]
            others = [
                wrong[0]
                for wrong, _ in hints_of(self.reference, unlike, lambda f, call=call: f(*call))
            ]
            if margin_of(*call[:4], damping) > MARGIN and not any(
                torch.equal(codes, other) for other in others
            ):
                return call

    def compare(self, submission, cases):
        outs = outs_of(submission, cases, ("codes", "scale"), ["w", "h"])
        wrong = [
            list(hints_of(self.reference, [one], lambda f: [f(*case) for case in cases]))
            for one in GPTQ
        ]
        words = ", or ".join(
            dict.fromkeys(text for found in wrong for all_of, text in found if all(map(self.is_same, outs, all_of, cases)))
        )  # fmt: skip
        for out, case in zip(outs, cases):
            codes, scale = variant(self.reference)(*case)
            w, _, bits, group, *_ = case
            told = f"w {tuple(w.shape)}, {bits} bits, groups of {group}, block {(*case, 128)[4]}"
            zeros = (w == 0).all(1, keepdim=True).expand_as(scale)  # any scale above 0 will do
            live(out[1], out[0])
            own = torch.where(zeros, scale, out[1]) if out[1].shape == scale.shape else out[1]
            hints = [(own, words)] if words else []
            expect.equal(own, scale, tol=1e-4, what=f"scale ({told})", hints=hints)
            hints = [(out[0], words)] if words else []
            expect.equal(out[0], codes, what=f"codes ({told})", hints=hints)

    def is_same(self, got, wrong, case):
        used = ~(case[0] == 0).all(1)
        return all(
            one.shape == other.shape and difference(one[used], other[used], 1e-3) is None
            for one, other in zip(got, wrong)
        )

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
        clamped = [mistake for mistake in GPTQ if "so clamp its code" in mistake[1]]
        cases = [self.draw(4, 16, 4, 16, unlike=clamped)]
        cases += [self.draw(*shape) for shape in [(6, 9, 3, 9), (1, 12, 2, 12), (5, 1, 4, 1)]]
        cases += [self.draw(4, 10, 4, 10), self.draw(4, 10, 4, 10, 128, 0.2)]
        self.compare(submission, cases)

    @check(points=3, title="the scales of a group are fresh, whatever the size of a block")
    def test_groups(self, submission):
        w, h, *_ = self.draw(4, 20, 3, 8)
        cases = [(w, h, 3, 8, block) for block in (5, 3, 12, 8, 1, 128)]
        shapes = [(3, 18, 4, 6, 4), (2, 11, 3, 4, 16), (4, 12, 4, 12, 5)]
        self.compare(submission, [*cases, *(self.draw(*shape) for shape in shapes)])

    @check(points=2, title="columns whose input was always 0, rows of zeros")
    def test_dead(self, submission):
        words = "a column whose input was always 0 leaves H without an inverse: give its diagonal the mean of the others, 1 if all are 0"
        w, h, *_ = self.draw(4, 8, 4, 4)
        w[1] = 0
        filled = [one for one in GPTQ if "always 0" in one[1] and "made 0" not in one[1]]
        cases = [
            self.draw(4, 10, 4, 5, 4, dead=(2, 7)),
            self.draw(3, 8, 3, 8, dead=(0,)),
            (w, h, 4, 4),
            (drawn((3, 6), 4, 3)[0], torch.zeros(6, 6, dtype=torch.float64), 4, 3),
            # half of the inputs are dead: here it is seen what their diagonal was filled with
            self.draw(6, 10, 4, 10, 128, 0.3, dead=(1, 2, 4, 7, 8), unlike=filled),
        ]
        signs = ("singular", "positive-definite", "positive definite", "factorization")
        with expect.because({signs: words}):
            self.compare(submission, cases)

    @check(points=2, title="beyond a block the columns are written once a block, not once a column")
    def test_lazy(self, submission):
        self.compare(submission, [self.draw(4, 24, 4, 24, 6)])
        rows, width, block = 128, 256, 16
        case = (torch.randn(rows, width), correlated(width), 4, width, block)
        (numbers,) = submission.run(probes.written, [case])
        bound, least = rows * width * width * 0.6, rows * width * block / 2
        expect.that(
            least <= numbers < bound,
            f"w {rows} x {width} in blocks of {block}: {numbers / 1e6:.1f} million numbers were written, expected under "
            f"{bound / 1e6:.1f}, and in PyTorch's sight over {least / 1e6:.1f}. Keep a block's errors, correct within the "
            "block, and what is beyond it by one matmul after the block: errors @ U[start:stop, stop:]",
        )


RATIO = "mean_abs.clamp(min=1e-4) ** (k / steps)"
CHANGE = "dequantize(*quantize_absmax(w * s, bits, group), group) / s - w"
NORMED = "s = s / (s.max() * s.min()).sqrt()"
BEST = "found[errors.index(min(errors))]"
SUM = "the sum of (ΔW h) · ΔW"
AWQ = [
    (("((change @ h) * change)", "(change * change)"), f"that is the weights' own error: what counts is the outputs', {SUM}"),
    ((CHANGE, CHANGE.replace(" / s", "")), "divide by s again before the error is taken: x / s meets W · s"),
    ((CHANGE, CHANGE.replace(" / s - w", " - w * s")), "that is the change of W · s, which meets x / s: divide it by s again, h is of x"),
    ((".sum().item()", ".mean().item()"), f"that is the mean over all weights: {SUM}"),
    ((".sum().item()", ".sum().item() / len(w)"), f"that is the mean over rows: {SUM}"),
    (("** (k / steps)", "** ((k + 1) / steps)"), "the grid begins at ratio 0: k / steps for k = 0, 1, … steps - 1"),
    (("(change @ h)", "(change * h.diagonal())"), f"those are the errors by h's diagonal alone, the sum of ΔW² · h_jj: {SUM}, also has the products of two inputs, h_ij"),
    ((RATIO, "(mean_abs ** (k / steps)).clamp(min=1e-4)"), "the mean magnitude of an input that is always 0 counts as 1e-4, clamped before the power is taken"),
    ((RATIO, "mean_abs ** (k / steps)"), "an input that is always 0 makes s 0, and its division by it nan: clamp mean_abs from below"),
    ((NORMED, "pass"), "divide s by the root of its largest times its smallest, so that W keeps its size"),
    ((NORMED, "s = s / s.log().mean().exp()"), "all numbers of s are some times what they must be: they are divided by the root of their largest times their smallest"),
    ((BEST, BEST.replace("min", "max")), "that is the s of the *largest* error"),
    ((BEST, "found[-1]"), "that is the last s of the grid: the one with the smallest error"),
    ((BEST, f"1 / {BEST}"), "that is upside down: columns that meet large inputs are scaled *up*"),
]  # fmt: skip


class TestAwq(Exercise):
    """The search for the columns' scale"""

    name = "awq"
    reference = "minitrain.quantization.plain:awq"
    hidden = HIDDEN

    def draw(self, rows, width, dead=()):
        """w and what its inputs are like: of very different sizes, and they know of one another."""
        sizes = torch.exp(1.5 * torch.randn(width))
        x = torch.randn(200, width) @ (torch.eye(width) + 0.5 * torch.randn(width, width)) * sizes
        x[:, list(dead)] = 0
        return torch.randn(rows, width), x.abs().mean(0), x.t() @ x / len(x)

    def compare(self, submission, cases):
        outs = outs_of(submission, cases, ("the best s", "the list of all errors"), ["w", "mean_abs", "h"])  # fmt: skip
        wrong = list(hints_of(self.reference, AWQ, lambda f: [f(*case) for case in cases]))
        for number, ((s, errors), case) in enumerate(zip(outs, cases)):
            scale, want = variant(self.reference)(*case)
            steps = len(want)
            told = f"w {tuple(case[0].shape)}, {case[3]} bits, groups of {case[4]}, {steps} ratios"
            expect.that(
                isinstance(errors, (list, tuple)) and len(errors) == steps,
                f"errors: got {expect.show(errors)}, expected a list of {steps} numbers, one for each ratio k / {steps}",
            )
            hints = [(every[number][1], words) for every, words in wrong]
            errors, what = [float(error) for error in errors], f"the error of each ratio ({told})"
            expect.equal(errors, want, tol=0.03, what=what, hints=hints)
            if errors.index(min(errors)) == want.index(min(want)):  # two may be as small
                hints = [(every[number][0], words) for every, words in wrong]
                what = f"s of the smallest error ({told})"
                expect.equal(s, scale, tol=1e-3, what=what, hints=hints)

    @check(points=4, title="each ratio's error is that of the outputs, and s is the best one's")
    def test_search(self, submission):
        shapes = [(6, 16, 4, 16), (4, 12, 3, 4), (5, 10, 3, 4), (3, 8, 2, 8)]
        self.compare(submission, [(*self.draw(*shape[:2]), *shape[2:]) for shape in shapes])

    @check(points=2, title="other grids, inputs that are always 0, inputs all alike")
    def test_edges(self, submission):
        errors = [1.0]
        while min(errors) > 0.9 * errors[0]:  # s of ratio 0 says nothing
            dead = *self.draw(4, 8, dead=(1, 5)), 4, 8
            _, errors = variant(self.reference)(*dead)
        self.compare(submission, [dead, (*self.draw(3, 9), 4, 3, 7), (*self.draw(3, 6), 3, 6, 1)])

    @check(points=1, title="ratio 0 leaves every bit as it was, and wins where no ratio gains")
    def test_none(self, submission):
        w, *_ = drawn((4, 8), 4, 8)
        exact = (w / w.abs().amax(1, keepdim=True) * 7).round()  # on the grid: nothing is lost
        mean_abs = torch.rand(8) + 0.5
        case = (exact, mean_abs, torch.diag(mean_abs**2), 4, 8)
        ((s, _),) = outs_of(submission, [case], ("s", "the errors"))
        words = "ratio 0 is s = 1, in every bit, and its error is 0 here: no other one is smaller"
        what = "s where rounding loses nothing"
        expect.identical(s, torch.ones(8), what=what, hints=[(s, words)])
        self.compare(submission, [(*self.draw(4, 8), 4, 8)])


S = "max_abs.clamp(min=1e-5) ** alpha / columns.clamp(min=1e-5) ** (1 - alpha)"
SMOOTH = [
    ((S, "columns.clamp(min=1e-5) ** (1 - alpha) / max_abs.clamp(min=1e-5) ** alpha"), "that is upside down: a large activation makes a large s, which the norm is divided by"),
    ((S, S.replace("** alpha", "** (beta)").replace("1 - alpha", "alpha").replace("beta", "1 - alpha")), "alpha and 1 - alpha have changed places"),
    (("in linears])", "in linears[:1]])"), "that is of the first linear layer alone: all read the same x / s, so the largest of all their columns"),
    (("in linears])", "in linears[-1:]])"), "that is of the last linear layer alone: all read the same x / s, so the largest of all their columns"),
    ((S, S.replace(" / ", " * ")), "the weights' share is divided by, not multiplied"),
    ((S, "max_abs.clamp(min=1e-5) ** alpha"), "the weights' share is missing: / max|w|^(1 - alpha)"),
    ((S, S.replace("(1 - alpha)", "alpha")), "that is the whole quotient to the power of alpha: the weights' magnitude has the exponent 1 - alpha"),
    ((S, f"{S}\n    s = s / (s.max() * s.min()).sqrt()"), "all numbers of s are some times what they must be: nothing makes them smaller or larger here"),
    ((S, "(max_abs**alpha).clamp(min=1e-5) / (columns ** (1 - alpha)).clamp(min=1e-5)"), "both magnitudes are clamped to at least 1e-5, before the powers are taken"),
    (("norm.weight /= s", "pass"), "the norm's weight is as it was: the norm is divided by s, every linear layer's columns are multiplied"),
    (("linear.weight *= s", "pass"), "a linear layer's weight is as it was: the norm is divided by s, every linear layer's columns are multiplied"),
    (("norm.weight /= s", "norm.weight *= s", "linear.weight *= s", "linear.weight /= s"), "that is the wrong way round: the norm is divided by s, the columns are multiplied"),
]  # fmt: skip


class TestSmooth(Exercise):
    """A scale from activations into weights"""

    name = "smooth"
    reference = "minitrain.quantization.plain:smooth"
    hidden = HIDDEN

    def draw(self, width, rows, tokens=5):
        weights = [torch.randn(n, width) * torch.rand(width).add(0.1) for n in rows]
        sizes = torch.exp(2 * torch.randn(width))
        return 0.5 + torch.rand(width), weights, sizes, torch.randn(tokens, width)

    def compare(self, submission, cases):
        words = "a linear layer's weight is (outputs, inputs), and s has a number for each input, a column"
        with expect.because({"must match": words}):
            found = submission.run(probes.smoothed, cases)
        zeros = "a channel that is always 0, or a column of zeros, makes s 0 or infinite: clamp max|x| and max|w| from below, before the powers"
        for case, got in zip(cases, found):
            is_number = isinstance(got["s"], torch.Tensor) and bool((got["s"] > 0).all())
            expect.that(is_number and got["s"].isfinite().all(), f"s is {expect.show(got['s'])}: {zeros}")  # fmt: skip
            told = (
                f"{len(case[1])} linear layers of {len(case[0])} inputs, alpha {(*case, 0.5)[4]:g}"
            )
            smoothed = lambda f, case=case: probes.smoothed(f, [case])[0]  # noqa: E731
            want = smoothed(variant(self.reference))
            wrong = list(hints_of(self.reference, SMOOTH, smoothed))
            for name, what in (("s", "s"), ("weights", "weights of the norm and of its readers")):
                hints = [(one[name], text) for one, text in wrong]
                expect.equal(got[name], want[name], tol=1e-4, what=f"{what} ({told})", hints=hints)
            expect.that(got["max_abs"], "`max_abs` was changed: it is the caller's")
            expect.that(
                got["same"] and got["in_place"] and got["leaves"],
                "the parameters must stay the same tensors, leaves that can be trained: change them in place under "
                "`torch.no_grad()`",
            )
            what = f"the outputs, which must not change ({told})"
            expect.equal(got["after"], got["before"], tol=1e-3, what=what)

    @check(
        points=3, title="s of the activations and of all layers that read them; the function stays"
    )
    def test_scale(self, submission):
        cases = [self.draw(8, (4, 6, 6)), self.draw(5, (3,)), self.draw(6, (2, 7), 1)]
        self.compare(submission, cases)

    @check(points=1, title="alpha from 0 to 1")
    def test_alpha(self, submission):
        alpha = float(torch.rand(())) * 0.3 + 0.55
        self.compare(submission, [(*self.draw(8, (4, 5)), a) for a in (alpha, 0.0, 1.0)])

    @check(points=2, title="channels that are always 0, and columns of zeros")
    def test_zeros(self, submission):
        one, other = self.draw(6, (4, 3)), self.draw(6, (4, 3))
        one[2][1] = 0  # no activation
        for weight in other[1]:
            weight[:, 3] = 0
        self.compare(submission, [one, other])


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
        self.is_straight(got["gradient"], *case)
        count = case[0].numel()
        expect.that(
            got["kept_bytes"] <= count,
            f"{got['kept_bytes']:,} bytes wait for backward for {count:,} weights: a mask of bools, 1 byte a weight, is "
            "all that backward needs",
        )


class TestFormats(Experiment):
    """Bits and groups, rounded to nearest"""

    name = "formats"
    rests_on = ("quantize_absmax", "quantize_zero_point")

    @check(points=2, title="8 bits cost nothing, and each bit less costs more")
    def test_bits(self, table):
        rows = expect.rows(table, "tiling", "bits")
        for tiling in ("tensor", "row", "group"):
            losses = [rows[tiling, bits]["above"] for bits in (8, 4, 3, 2)]
            whole = rows["float", 32]["above"]
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
        rows = expect.rows(table, "tiling", "bits")
        for bits in (3, 2):
            tensor, row, group = (rows[t, bits]["above"] for t in ("tensor", "row", "group"))
            expect.that(
                group < row + 0.003 and row < tensor + 0.003,
                f"{bits} bits: {tensor:.3f} with a scale a matrix, {row:.3f} a row, {group:.3f} a group",
            )
        for bits in (8, 4, 3, 2):
            held = rows["group", bits]["bits_per_weight"]
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
        rows = expect.rows(table, "method", "bits")
        return {key: row["above"] for key, row in rows.items()}

    @check(
        points=4,
        title="3 bits: GPTQ and AWQ each lose less than rounding to nearest, both together least",
    )
    def test_order(self, table):
        above = self.costs(table)
        rtn, gptq, awq, both = (above[m, 3] for m in ("nearest", "GPTQ", "AWQ", "AWQ + GPTQ"))
        told = f"3 bits, nats above the floor: nearest {rtn:.4f}, GPTQ {gptq:.4f}, AWQ {awq:.4f}, both {both:.4f}"
        expect.that(gptq < rtn and awq < rtn, told)
        expect.that(both < min(gptq, awq) + 0.003, told)

    @check(points=2, title="the tasks fall with the bits: accuracy, and stories told consistently")
    def test_tasks(self, table):
        rows = expect.rows(table, "method", "bits")
        whole, two = rows["float", 32], rows["nearest", 2]
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
        rows = expect.rows(table, "way")
        ways = ("nearest", "GPTQ", "more training, GPTQ", "QAT")
        above = {way: rows[way]["above"] for way in ways}
        told = ", ".join(f"{way} {value:.4f}" for way, value in above.items())
        expect.that(above["QAT"] < above["GPTQ"] and above["QAT"] < above["nearest"], told)

    @check(points=2, title="what is deployed is what was trained, bit for bit")
    def test_deployed(self, table):
        rows = expect.rows(table, "way")
        trained, deployed = (rows[way]["above"] for way in ("QAT", "QAT, deployed"))
        words = f"trained: {trained}, deployed: {deployed}: the same codes and scales"
        expect.that(trained == deployed, words)


class TestSpeed(Experiment):
    """Bytes and seconds of packed kernels"""

    name = "speed"
    rests_on = ("quantize_absmax",)

    @check(
        points=3,
        title="bytes are what the formats say, for one token and for 32",
    )
    def test_bytes(self, table):
        rows = expect.rows(table, "format", "tokens")
        for tokens in (1, 32):
            sixteen = rows["bfloat16", tokens]
            for name, share in (("int8-row", 0.5), ("int4-g64", 0.28125)):
                row = rows[name, tokens]
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
        rows = expect.rows(expect.recorded(records, "methods"), "method", "bits")
        whole, rtn, gptq = (
            rows[key]["above"] for key in (("float", 32), ("nearest", 3), ("GPTQ", 3))
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
