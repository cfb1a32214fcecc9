"""The checks of lab e08: quantization, graded code by code where codes are the point."""

from __future__ import annotations

from itertools import pairwise

import torch

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import difference
from minitrain.lab.grading.variants import cause, hints, variant

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
TINY = torch.finfo(torch.float32).tiny
ONE, SIZES_OF_ROWS = torch.ones(1, 1), torch.tensor([[1e-30], [1e30], [0.0], [1.0]])
NAMES = ("codes", "scale", "zero")
OVER = "the last group of a row may be smaller: pad with zeros, and cut the padding off"
SHORT = {("unflatten", "invalid for input", "reshape", "view"): OVER}
SINGULAR = {
    ("singular", "positive-definite", "positive definite", "factorization"): "a column whose input was always 0 leaves "
    "H without an inverse: give its diagonal the mean of the others, 1 if all are 0"
}  # fmt: skip


def steady(draw, f):
    """Draws calls until none of f's codes is near a tie, where rounding errors would decide."""
    while True:
        x, *rest = draw()
        want = f(x, *rest)
        others = (f(x * (1 + 1e-5 * torch.randn_like(x)), *rest) for _ in range(8))
        if all(difference(other, want, 1e-3) is None for other in others):
            return x, *rest


def refuse_ready_made(got, calls):
    """What came of calls; at least as many numbers as in their first arguments were computed."""
    found = sorted(name for name in got["names"] if "quantize" in name)
    count = sum(call[0].numel() for call in calls)
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


def outs_of(submission, calls, names, arguments):
    """What came of each call: as many parts as names; `arguments` stay as they are."""
    got = submission.run(probes.in_a_row, calls)
    refuse_ready_made(got, calls)
    outs = [call["out"] for call in got["calls"]]
    for out in outs:
        expect.that(
            isinstance(out, (list, tuple)) and len(out) == len(names),
            f"got {expect.show(out)}: return {', '.join(names)}",
        )
    expect.left_alone(got["calls"], calls, arguments)
    return outs


def settled(out, want):
    """`out`, with our scale where a group is of zeros: any above 0 is right."""
    codes, scale, *zero = out
    if not isinstance(scale, torch.Tensor) or scale.shape != want[1].shape:
        return out
    expect.that(
        (scale > 0).all() and scale.isfinite().all(),
        f"the scales {expect.show(scale)} hold one that is not above 0. For a group of zeros, too, it must be, or 0 / 0 "
        "is nan",
    )
    return codes, torch.where(want[1] == TINY, want[1].to(scale.dtype), scale), *zero


def are_right(item, submission, calls, tol=None):
    """calls: (w, bits, group, …) or (w, h, bits, group, …)."""

    def by(f):
        return [f(*call) for call in calls]

    wants = by(variant(item.reference))
    names = NAMES[: len(wants[0])]
    found = outs_of(submission, calls, names, item.arguments)
    outs = [settled(*pair) for pair in zip(found, wants)]
    words = cause(outs, item.reference, item.MISTAKES, by, tol)
    for (w, *rest), out, want in zip(calls, outs, wants):
        rest = [part for part in rest if not isinstance(part, torch.Tensor)]
        told = f"w {tuple(w.shape)}, {rest[0]} bits, groups of {rest[1]}"
        told += f", block {rest[2]}" if len(rest) > 2 else ""
        for name in sorted(names, key=("scale", "zero", "codes").index):
            place = names.index(name)
            wrong = [(out[place], words)]
            expect.equal(out[place], want[place], tol, wrong, f"{name} ({told})")
            if name == "scale":  # a small one counts as much as a large one
                ratio = out[1] / want[1]
                what = f"each scale over what it must be ({told})"
                expect.equal(ratio, torch.ones_like(ratio), tol, what=what)


def drawn(item, shape, bits, group, move=0.0, sizes=ONE):
    """A call; sizes (F, 1): of the rows."""
    f = variant(item.reference)
    return steady(lambda: (torch.randn(shape) * sizes + move, bits, group), f)


class TestQuantizeAbsmax(Exercise):
    """Symmetric integers, a scale a group"""

    name = "quantize_absmax"
    reference = "minitrain.quantization.plain:quantize_absmax"
    hidden = HIDDEN
    arguments = ("w",)
    MISTAKES = (
        (("abs().amax(dim=2) / m", "abs().amax(dim=2) / (m + 1)"), "that is divided by m + 1: the largest magnitude becomes code m, so divide by m"),
        (("abs().amax(dim=2) / m", "abs().amax(dim=(1, 2))[:, None].expand(tiles.shape[:2]) / m"), "that is one scale a row: one for each group"),
        (("tiles.abs().amax(dim=2)", "tiles.amax(dim=2).abs()"), "the largest *magnitude* sets the scale: `.abs()` comes before `.amax()`"),
        (("(tiles / scale[:, :, None]).round()", "(tiles / scale[:, :, None]).trunc()"), "codes are cut, toward 0: round to the nearest"),
        (("(0, -width % group)", "(-width % group, 0)"), "groups were counted from the row's end, so that the first one is the smaller: it is the last"),
    )  # fmt: skip

    def compare(self, submission, *shapes):
        are_right(self, submission, [drawn(self, *shape) for shape in shapes])

    @check(
        points=3, title="one scale a row: the largest magnitude becomes code m, others the nearest"
    )
    def test_rows(self, submission):
        self.compare(submission, ((5, 8), 4, 8), ((3, 16), 8, 16), ((1, 7), 3, 7), ((4, 5), 2, 5))

    @check(points=3, title="one scale a group, also where groups do not divide the row")
    def test_groups(self, submission):
        shapes = [((4, 12), 4, 4), ((3, 10), 3, 4), ((3, 9), 4, 4), ((2, 7), 8, 3), ((5, 4), 4, 16)]
        with expect.because(SHORT):
            self.compare(submission, *shapes, ((1, 9), 4, 2), ((2, 1), 4, 1))

    @check(
        points=2,
        title="a group of zeros gives zeros; tiny and huge weights have scales of their size",
    )
    def test_edges(self, submission):
        calls = [drawn(self, (4, 6), 4, 3, 0.0, SIZES_OF_ROWS), (torch.zeros(2, 8), 4, 4)]
        w, *rest = drawn(self, (4, 6), 8, 3)
        w[1, :3], w[3, 3:] = 0, 0
        are_right(self, submission, [*calls, (w, *rest)])


class TestQuantizeZeroPoint(Exercise):
    """Integers with a zero point"""

    name = "quantize_zero_point"
    reference = "minitrain.quantization.plain:quantize_zero_point"
    hidden = HIDDEN
    arguments = ("w",)
    MISTAKES = (
        (("(high - low) / n", "(high - low) / (n + 1)"), "between so many codes there are 2^b - 1 steps"),
        (("(high - low) / n", "torch.maximum(high, -low) / n"), "that is of the largest magnitude: the whole range, largest - smallest, has 2^b - 1 steps"),
        (("amin(dim=2).clamp(max=0)", "amin(dim=2)", "amax(dim=2).clamp(min=0)", "amax(dim=2)"), "the range must hold 0, or 0 has no code: smallest at most 0, largest at least 0"),
        (("(-low / scale).round()", "(-low / scale).trunc()"), "zero is cut: it is the *nearest* code, round it"),
        (("(tiles / scale[:, :, None]).round() + zero[:, :, None]", "((tiles - low[:, :, None]) / scale[:, :, None]).round()"), "w - smallest was rounded, and `zero` apart from it: w / s is rounded, and the whole number `zero` added"),
    )  # fmt: skip

    def compare(self, submission, *shapes):
        are_right(self, submission, [drawn(self, *shape) for shape in shapes])

    @check(points=4, title="the range from smallest to largest has 2^b - 1 steps; 0 has a code")
    def test_codes(self, submission):
        self.compare(
            submission, ((5, 8), 4, 8, 0.5), ((3, 16), 8, 16, -0.3), ((4, 9), 3, 9, 0.2), ((1, 6), 2, 6, 0.0)
        )  # fmt: skip

    @check(points=2, title="groups of one sign only: 0 is inside, exactly")
    def test_one_sign(self, submission):
        self.compare(submission, ((4, 8), 4, 4, 6.0), ((3, 8), 4, 8, -6.0), ((2, 5), 8, 5, 9.0))

    @check(points=2, title="groups that do not divide the row, and groups of zeros")
    def test_edges(self, submission):
        with expect.because(SHORT):
            self.compare(
                submission, ((3, 10), 4, 4, 0.4), ((5, 4), 8, 16, 0.1), ((2, 7), 3, 3, 6.0)
            )
        calls = [drawn(self, (4, 6), 4, 3, 0.0, SIZES_OF_ROWS), (torch.zeros(2, 6), 4, 3)]
        are_right(self, submission, calls)
        self.both_ends(submission)

    def both_ends(self, submission):
        """Where largest = -smallest, w/s and z are halves, and both may round up."""
        w = torch.randn(64, 6).clamp(-2, 2)
        w[:, 1] = 2 + torch.rand(64)
        w[:, 4] = -w[:, 1]
        calls = [(w, bits, 6) for bits in (4, 8)]
        for (_, bits, _), out in zip(calls, outs_of(submission, calls, NAMES, ["w"])):
            codes, scale, zero = out
            off = ((codes.double() - zero.double()) * scale.double() - w).abs() > 0.51 * scale
            expect.that(
                int(codes.max()) < 2**bits and not off.any(),
                f"in a group from -a to a, with {bits} bits, a code is {int(codes.max())} or a weight is off by "
                f"more than half a step: w/s and z may both round up, and codes end at {2**bits - 1}: clamp them",
            )


class TestLlmInt8(Exercise):
    """Int8 products beside a few exact columns"""

    name = "llm_int8"
    reference = "minitrain.quantization.plain:llm_int8"
    hidden = HIDDEN
    MISTAKES = (
        (("regular = x.masked_fill(outlier, 0)", "regular = x"), "the outliers took part: make their columns 0 for `multiply` and for the scales, or leave them out"),
        (("x_scale = regular.abs().amax(dim=1", "x_scale = x.abs().amax(dim=1"), "the outliers have set the scales: take the largest magnitude of each token *without* them"),
        (("x.masked_fill(outlier, 0)", "x.masked_fill(x.abs() >= threshold, 0)"), "the large numbers alone were taken out, and a column is taken out whole"),
        (("(dim=0) >= threshold", "(dim=0) > threshold"), "a column whose largest magnitude is the threshold itself reaches it, too: `>=`"),
        (("regular.abs().amax(dim=1, keepdim=True)", "regular.abs().amax().expand(len(x), 1)"), "that is one scale for all tokens: each token has its own"),
    )  # fmt: skip

    def draw(self, tokens, width, features, outliers=(), size=20.0, threshold=6.0):
        """`outliers`: columns of which one token's number is large."""

        def drawn():
            x = torch.randn(tokens, width).clamp(-4, 4) * (0.1 + torch.rand(tokens, 1))
            for number, column in enumerate(outliers, 1):
                x[int(torch.randint(tokens, ())), column] = size * number
            return x, codes, scale, extra, threshold

        codes = torch.randint(-127, 128, (features, width), dtype=torch.int8)
        scale = 0.001 + 0.01 * torch.rand(features, 1)
        extra = torch.randint(-900, 900, (tokens, features))
        return steady(drawn, lambda *call: self.sent(variant(self.reference), call))

    def sent(self, f, call):
        """The codes of x that went into `multiply`, and y."""
        got = probes.multiplied(f, [call])
        return got["notes"][0][0]["a"], got["calls"][0]["out"]

    def compare(self, submission, calls):
        """calls: (x, codes, scale, what this integer unit adds to each sum, threshold)"""
        got = submission.run(probes.multiplied, calls)
        refuse_ready_made(got, calls)
        for call, one, notes in zip(calls, got["calls"], got["notes"]):
            self.is_right(one["out"], notes, call)
        expect.left_alone(got["calls"], calls, ["x", "codes", "scale"])

    def is_right(self, out, notes, call):
        x, *_, threshold = call
        outlier = x.abs().amax(0) >= threshold
        told = (
            f"x {tuple(x.shape)}, outliers in {int(outlier.sum())} columns, threshold {threshold:g}"
        )
        expect.that(
            len(notes) == 1,
            f"`multiply` was called {len(notes)} times ({told}): once for all ordinary columns, whatever x holds, also "
            "where every column is an outlier's",
        )
        words = f"`multiply` was given {notes[0]['dtypes']}: both are int8, a byte a number"
        expect.that(notes[0]["dtypes"] == ["torch.int8"] * 2, words)
        wrong = list(hints(self.reference, self.MISTAKES, lambda f: self.sent(f, call)))
        f = variant(self.reference)
        a, y = self.sent(f, call)
        has_all = notes[0]["a"].shape[1] == x.shape[1]  # else the outliers' columns were left out
        kept = slice(None) if has_all else ~outlier
        words = [(one[0][:, kept], text) for one, text in wrong]
        what = f"the codes of x that went into `multiply` ({told})"
        expect.equal(notes[0]["a"], a[:, kept], hints=words, what=what)
        _, bare = self.sent(f, (*call[:3], 0 * call[3], threshold))
        words = "`multiply` was called, and y is not made of what it returned: this check's adds something to each sum"
        words = [(bare, words), *((one[1], text) for one, text in wrong)]
        expect.equal(out, y, tol=1e-4, hints=words, what=f"y ({told})")

    @check(
        points=3, title="no outlier: int8 products, each token and each row of W with its own scale"
    )
    def test_plain(self, submission):
        calls = [self.draw(*sizes) for sizes in ((6, 12, 5), (1, 8, 3), (9, 4, 1))]
        x, codes, scale, extra, threshold = self.draw(5, 10, 4)
        x[2], extra[2] = 0, 0  # a token of zeros: its scale is free
        calls += [
            (x, codes, scale, extra, threshold),
            self.draw(4, 9, 6, (3,), threshold=torch.inf),
        ]
        with expect.because(
            {"nan": "a token of zeros: its scale must be above 0, or 0 / 0 is nan"}
        ):
            self.compare(submission, calls)

    @check(
        points=4,
        title="columns that reach the threshold go in floating point, whole, and set no scale",
    )
    def test_outliers(self, submission):
        calls = [self.draw(6, 12, 5, (2, 9)), self.draw(7, 10, 3, (4,), -20.0)]
        calls += [self.draw(1, 6, 4, (0, 5)), self.draw(5, 8, 4, (1, 2), threshold=25.0)]
        self.compare(submission, calls)

    @check(
        points=3,
        title="a column that is exactly at the threshold; all columns; other sizes in between",
    )
    def test_edges(self, submission):
        x, codes, scale, extra, _ = self.draw(4, 7, 5, (3,))
        at = float(x[:, 3].abs().max())
        x, every = x.where(x.abs() < at, -at), self.draw(3, 5, 4, threshold=1e-9)
        every[3].zero_()  # a token without ordinary numbers has no scale that counts
        calls = [(x, codes, scale, extra, at), every, self.draw(8, 16, 2, (7,))]
        self.compare(submission, calls)


class TestGptq(Exercise):
    """Rounding that makes up for its errors"""

    name = "gptq"
    reference = "minitrain.quantization.plain:gptq"
    hidden = HIDDEN
    arguments = ("w", "h")
    MISTAKES = (
        (("part -= torch.outer(error, upper[j, start:stop])", "pass", "w[:, stop:] - errors @ upper[start:stop, stop:]", "w[:, stop:]"), "that is rounding to nearest: after each column the ones to come take up its error"),
        (("diagonal, dead = h.diagonal(), h", "first_w, diagonal, dead = w, h.diagonal(), h", "quantize_absmax(w[:", "quantize_absmax(first_w[:"), "the scales of a group come from the weights as they were: fit them when its first column comes, on weights that hold every correction so far"),
        ((" / upper[j, j]", ""), "the error must be divided by U[j, j] before it is spread: e = (w_j - ŵ_j) / U[j, j]"),
        (("w[:, stop:] - errors @ upper[start:stop, stop:]", "w[:, stop:]"), "the errors of a block stay in it: what is beyond the block must get them too, by one matmul after it"),
        (("torch.linalg.cholesky(torch.linalg.inv(h), upper=True)", "torch.linalg.inv(h)"), "that is with the inverse of H itself, the same for all columns. Row j of its Cholesky factor U is of what is left of H from column j on"),
    )  # fmt: skip

    def draw(self, rows, width, *rest, dead=(), tokens=100):
        """Inputs that know of one another, of which `dead` were always 0."""

        def drawn():
            mixed = torch.eye(width) + 0.5 * torch.randn(width, width)
            x = (torch.randn(tokens, width) @ mixed).double()
            x[:, list(dead)] = 0
            return torch.randn(rows, width), x.t() @ x / tokens, *rest

        return steady(drawn, variant(self.reference))

    @check(
        points=2, title="inputs that know nothing of one another: rounding to nearest, bit for bit"
    )
    def test_identity(self, submission):
        calls = []
        for rows, width, *rest in [(4, 12, 4, 12, 5), (3, 10, 3, 4, 128)]:
            h = 3.0 * torch.eye(width, dtype=torch.float64)
            draw = lambda: (torch.randn(rows, width), h, *rest)  # noqa: B023, E731
            calls.append(steady(draw, variant(self.reference)))
        are_right(self, submission, calls, 1e-4)

    @check(points=5, title="columns to come make up for each error, in one group of codes a row")
    def test_columns(self, submission):
        shapes = [(6, 9, 3, 9), (1, 12, 2, 12), (5, 1, 4, 1), (9, 16, 3, 16)]
        calls = [self.draw(*shape) for shape in (*shapes, (4, 10, 4, 10, 128, 0.2))]
        calls.append(self.draw(8, 12, 4, 12, 128, 1e-5, tokens=6))  # float32 would not do
        are_right(self, submission, calls, 1e-4)

    @check(points=3, title="the scales of a group are fresh, whatever the size of a block")
    def test_groups(self, submission):
        w, h, *_ = self.draw(4, 20, 3, 8)
        calls = [(w, h, 3, 8, block) for block in (5, 3, 12, 8, 1, 128)]
        shapes = [(3, 18, 4, 6, 4), (2, 11, 3, 4, 16), (4, 12, 4, 12, 5), (2, 9, 4, 16)]
        are_right(self, submission, [*calls, *(self.draw(*shape) for shape in shapes)], 1e-4)

    @check(points=2, title="columns whose input was always 0, rows of zeros")
    def test_dead(self, submission):
        w, h, *_ = self.draw(4, 8, 4, 4)
        w[1] = 0
        calls = [
            (w, h, 4, 4),
            (self.draw(3, 6, 4, 3)[0], torch.zeros(6, 6, dtype=torch.float64), 4, 3),
            self.draw(4, 10, 4, 5, 4, dead=(2, 7)),
            # half of the inputs are dead: here it is seen what their diagonal was filled with
            self.draw(64, 24, 4, 24, 128, 0.6, dead=range(1, 24, 2)),
        ]
        with expect.because(SINGULAR):
            are_right(self, submission, calls, 1e-4)

    @check(points=2, title="beyond a block the columns are written once a block, not once a column")
    def test_lazy(self, submission):
        are_right(self, submission, [self.draw(4, 24, 4, 24, 6)], 1e-4)
        rows, width, block = 128, 256, 16
        h = torch.eye(width).double() + 0.1
        (numbers,) = submission.run(
            probes.written, [(torch.randn(rows, width), h, 4, width, block)]
        )
        bound, least = rows * width * width * 0.6, rows * width * block / 2
        expect.that(
            least <= numbers < bound,
            f"w {rows} x {width} in blocks of {block}: {numbers / 1e6:.1f} million numbers were written, expected under "
            f"{bound / 1e6:.1f}, and in PyTorch's sight over {least / 1e6:.1f}. Keep a block's errors, correct within the "
            "block, and what is beyond it by one matmul after the block: errors @ U[start:stop, stop:]",
        )


class TestAwq(Exercise):
    """The search for the columns' scale"""

    name = "awq"
    reference = "minitrain.quantization.plain:awq"
    hidden = HIDDEN
    MISTAKES = (
        (("((change @ h) * change)", "(change * change)"), "that is the weights' own error: what counts is the outputs', the sum of (ΔW h) · ΔW"),
        (("group) / s - w", "group) - w"), "divide by s again before the error is taken: x / s meets W · s"),
        (("group) / s - w", "group) - w * s"), "that is the change of W · s, which meets x / s: divide it by s again, h is of x"),
        (("** (k / steps)", "** ((k + 1) / steps)"), "the grid begins at ratio 0: k / steps for k = 0, 1, … steps - 1"),
        (("(change @ h)", "(change * h.diagonal())"), "those are the errors by h's diagonal alone: the sum of (ΔW h) · ΔW has the products of two inputs, h_ij, too"),
    )  # fmt: skip

    def draw(self, rows, width, *rest, dead=()):
        """Inputs of very different sizes, which know of one another."""

        def drawn():
            sizes = torch.exp(1.5 * torch.randn(width))
            mixed = torch.eye(width) + 0.5 * torch.randn(width, width)
            x = torch.randn(200, width) @ mixed * sizes
            x[:, list(dead)] = 0
            return torch.randn(rows, width), x.abs().mean(0), x.t() @ x / len(x), *rest

        return steady(drawn, variant(self.reference))

    def compare(self, submission, calls):
        names = ("the best s", "the list of all errors")
        outs = outs_of(submission, calls, names, ["w", "mean_abs", "h"])
        for call, (s, errors) in zip(calls, outs):
            scale, want = variant(self.reference)(*call)
            steps = len(want)
            told = f"w {tuple(call[0].shape)}, {call[3]} bits, groups of {call[4]}, {steps} ratios"
            expect.that(
                isinstance(errors, (list, tuple)) and len(errors) == steps,
                f"errors: got {expect.show(errors)}, expected a list of {steps} numbers, one for each ratio k / {steps}",
            )
            wrong = list(hints(self.reference, self.MISTAKES, lambda f: f(*call)))  # noqa: B023
            for name, got, wanted, place in (
                ("the error of each ratio", list(errors), want, 1),
                ("s", s, scale, 0),
            ):
                words = [(one[place], text) for one, text in wrong]
                expect.equal(got, wanted, 1e-3, words, f"{name} ({told})")

    @check(points=4, title="each ratio's error is that of the outputs, and s is the best one's")
    def test_search(self, submission):
        shapes = [(6, 16, 4, 16), (4, 12, 3, 4), (5, 10, 3, 4), (3, 8, 2, 8)]
        self.compare(submission, [self.draw(*shape) for shape in shapes])

    @check(points=2, title="other grids, inputs that are always 0, inputs all alike")
    def test_edges(self, submission):
        errors = [1.0]
        while min(errors) > 0.9 * errors[0]:  # s of ratio 0 says nothing
            dead = self.draw(4, 8, 4, 8, dead=(1, 5))
            _, errors = variant(self.reference)(*dead)
        alike = (torch.randn(2, 4), torch.ones(4), torch.eye(4), 4, 4, 3)
        self.compare(submission, [dead, self.draw(3, 9, 4, 3, 7), self.draw(3, 6, 3, 6, 1), alike])

    @check(points=1, title="ratio 0 leaves every bit as it was, and wins where no ratio gains")
    def test_none(self, submission):
        w = torch.randint(-7, 8, (4, 8)).float()
        w[:, 0] = 7.0  # on the grid: nothing is lost
        mean_abs = torch.rand(8) + 0.5
        calls = [(part, mean_abs, torch.diag(mean_abs**2), 4, 8) for part in (w, 0 * w)]
        words = "ratio 0 is s = 1, in every bit, and its error is 0 here: no other one is smaller, and the first of equals wins"
        for s, errors in outs_of(submission, calls, ("s", "the errors"), []):
            what = "s where rounding loses nothing"
            expect.identical(s, torch.ones(8), what=what, hints=[(s, words)])
            expect.that(
                all(isinstance(error, float) for error in errors),
                f"the errors are {expect.show(errors)}: a list of floats, `.item()` gives one",
            )


class TestSmooth(Exercise):
    """A scale from activations into weights"""

    name = "smooth"
    reference = "minitrain.quantization.plain:smooth"
    hidden = HIDDEN
    S = "max_abs.clamp(min=1e-5) ** alpha / columns.clamp(min=1e-5) ** (1 - alpha)"
    MISTAKES = (
        ((S, f"1 / ({S})"), "that is upside down: a large activation makes a large s, which the norm is divided by"),
        (("1e-5) ** alpha", "1e-5) ** (1 - alpha)", "1e-5) ** (1 - alpha)\n", "1e-5) ** alpha\n"), "alpha and 1 - alpha have changed places"),
        (("in linears])", "in linears[:1]])"), "that is of the first linear layer alone: all read the same x / s, so the largest of all their columns"),
        (("norm.weight /= s", "pass"), "the norm's weight is as it was: the norm is divided by s, every linear layer's columns are multiplied"),
        (("linear.weight *= s", "pass"), "a linear layer's weight is as it was: the norm is divided by s, every linear layer's columns are multiplied"),
    )  # fmt: skip

    def draw(self, width, *rows, alpha=()):
        weights = [torch.randn(n, width) * torch.rand(width).add(0.1) for n in rows]
        return 0.5 + torch.rand(width), weights, torch.exp(2 * torch.randn(width)), *alpha

    def compare(self, submission, calls):
        words = "a linear layer's weight is (outputs, inputs), and s has a number for each input, a column"
        with expect.because({"must match": words}):
            found = submission.run(probes.smoothed, calls)
        wants = probes.smoothed(variant(self.reference), calls)
        told = cause(
            found, self.reference, self.MISTAKES, lambda f: probes.smoothed(f, calls), 1e-4
        )
        zeros = "a channel that is always 0, or a column of zeros, makes s 0 or infinite: clamp max|x| and max|w| from below, before the powers"
        for call, got, want in zip(calls, found, wants):
            is_number = isinstance(got["s"], torch.Tensor) and bool((got["s"] > 0).all())
            expect.that(is_number and got["s"].isfinite().all(), f"s is {expect.show(got['s'])}: {zeros}")  # fmt: skip
            where = (
                f"{len(call[1])} linear layers of {len(call[0])} inputs, alpha {(*call, 0.5)[3]:g}"
            )
            for name, what in (("s", "s"), ("weights", "weights of the norm and of its readers")):
                expect.equal(got[name], want[name], 1e-4, [(got[name], told)], f"{what} ({where})")
            expect.that(got["max_abs"], "`max_abs` was changed: it is the caller's")
            expect.that(
                got["same"],
                "the parameters must stay the same tensors, leaves that can be trained: change them in place under "
                "`torch.no_grad()`",
            )

    @check(
        points=3, title="s of the activations and of all layers that read them; the function stays"
    )
    def test_scale(self, submission):
        self.compare(submission, [self.draw(8, 4, 6, 6), self.draw(5, 3), self.draw(6, 2, 7)])

    @check(points=1, title="alpha from 0 to 1")
    def test_alpha(self, submission):
        alphas = float(torch.rand(())) * 0.3 + 0.55, 0.0, 1.0
        self.compare(submission, [self.draw(8, 4, 5, alpha=(alpha,)) for alpha in alphas])

    @check(points=2, title="channels that are always 0, and columns of zeros")
    def test_zeros(self, submission):
        one, other = self.draw(6, 4, 3), self.draw(6, 4, 3)
        one[2][1] = 0  # no activation
        for weight in other[1]:
            weight[:, 3] = 0
        self.compare(submission, [one, other])


class TestFakeQuantize(Exercise):
    """Rounded forward, straight through backward"""

    name = "fake_quantize"
    reference = "minitrain.quantization.plain:fake_quantize"
    hidden = HIDDEN
    MISTAKES = (
        (("codes.clamp(-m, m) * scale + (through - through.detach())", "through + (codes.clamp(-m, m) * scale - through).detach()"), "those are the right numbers but for the last bit: w + (rounded - w) is not `rounded` in floats. Return the rounded number itself, plus something that is exactly 0"),
        (("codes.clamp(-m, m)", "codes"), "codes beyond ±m must be clamped"),
        (("torch.where(codes.abs() <= m, w, w.detach())", "w"), "that passes outside too: where a code was clamped the gradient is 0, a step of w changes nothing"),
        (("codes.abs() <= m", "(w / scale).abs() <= m"), "that is 0 beyond m scales: up to m + 1/2 a weight is rounded to code m, not clamped"),
        (("codes.abs() <= m", "codes.abs() < m"), "that is 0 for code m, too: m is a code, and not clamped"),
    )  # fmt: skip

    def draw(self, shape, bits, over=2.0, asks=False):
        """w of which some lie outside, up to `over` times m, without ties; and a gradient."""
        m = 2 ** (bits - 1) - 1
        scale = 0.1 + torch.rand(shape[0], 1)
        codes = torch.randint(-int(over * m) - 2, int(over * m) + 3, shape)
        w = (codes + 0.8 * torch.rand(shape) - 0.4) * scale
        return w, scale, bits, torch.randn(shape), asks

    def draws(self):
        shapes = ((4, 6), 4), ((3, 9), 3), ((1, 12), 2), ((7, 1), 8, 1.2)
        w, *rest = self.draw((5, 8), 4)
        far = self.draw((16, 32), 3, 9.0)  # far outside: there the last bit shows
        little = (0.3 * w.sign() * rest[0], *rest)  # codes of 0
        strided = (w.mT.contiguous().mT, *rest)
        return [*(self.draw(*shape) for shape in shapes), far, strided, little]

    def compare(self, submission, calls, part):
        got = submission.run(probes.trained_through, calls)
        refuse_ready_made(got, calls)
        for call, found in zip(calls, got["calls"]):
            made = lambda f: probes.trained_through(f, [call])["calls"][0][part]  # noqa: B023, E731
            what = f"{part}, w {tuple(call[0].shape)}, {call[2]} bits"
            words = hints(self.reference, self.MISTAKES, made)
            tol = 0.0 if part == "what is left of w" else None
            expect.equal(found[part], made(variant(self.reference)), tol, words, what)
            expect.that(found["unchanged"], "w or scale was changed: they are the caller's")
            expect.that(
                not found["of_scale"],
                "`scale` asked for a gradient and was given one: it gets none, so code times scale is made without a graph",
            )
        return got["calls"]

    @check(points=2, title="forward: code times scale, bit for bit what is deployed")
    def test_forward(self, submission):
        calls = self.draws()
        self.compare(submission, calls, "what is left of w")
        plain = [call[:3] for call in calls[:3]]
        expect.left_alone(submission.run(probes.in_a_row, plain)["calls"], plain, ["w", "scale"])

    @check(points=3, title="backward: the gradient as it is where no code was clamped, else 0")
    def test_gradient(self, submission):
        calls = [*self.draws(), self.draw((4, 6), 4, asks=True)]
        self.compare(submission, calls, "the gradient of w")

    @check(points=2, title="what waits for backward is at most one byte a weight, beside w itself")
    def test_kept(self, submission):
        calls = [self.draw((64, 128), 4)]
        (got,) = self.compare(submission, calls, "the gradient of w")
        count = calls[0][0].numel()
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
