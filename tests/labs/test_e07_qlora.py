"""The checks of lab e07: QLoRA, graded by levels, bytes held, what waits for backward, and faults."""

from __future__ import annotations

import math
from random import choice, randint

import torch
from torch import Tensor

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import ROUNDING
from minitrain.lab.grading.variants import cause, hints, variant
from minitrain.model.config import preset
from minitrain.planning.finetuning_memory import FULL, LORA, QLORA, tuning_memory

from .probes import e07_qlora as probes

LAB = "e07_qlora"
SIZES = {
    "cpu": {
        "width": 128, "layers": 4, "length": 64, "batch": 8, "pretrain": 200, "steps": 80,
        "rank": 8, "budget": "2.6 MB", "tested": 20_000,
    },
    "test": {"pretrain": 60, "steps": 12, "tested": 8_000},
}  # fmt: skip
REVEALS = {
    "middle_share": Reveal("measured", "the three middle levels of INT4, blocks of 64"),
    "spared_bits": Reveal("measured", "32/64 - 8/64 - 32/(64·256)", formula=lambda: 32 / 64 - 8 / 64 - 32 / (64 * 256)),
    "kept_bytes": Reveal("measured", "the weight in float32", formula=lambda outs, ins: 4 * outs * ins),
    "faults": Reveal("measured", "each page is evicted just before it is needed", formula=lambda: 9),
}  # fmt: skip
FORMATS = (
    "minitrain/quantization/formats/grids.py",
    "minitrain/quantization/formats/weight.py",
    "minitrain/optimizers/adam8bit.py",
)
LAYER = ("minitrain/quantization/layers/linear.py", "minitrain/quantization/layers/int8.py")
PAGER = ("minitrain/memory/paged_optimizer.py",)


def is_tensor(value, dtype, shape, what):
    """Fails where it is another kind of thing."""
    kind = (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else expect.show(value)
    expect.that(
        kind == (dtype, tuple(shape)),
        f"{what}: got {kind}, asked for is {dtype} of shape {tuple(shape)}",
    )


def because(got, words):
    """A hint on `got` where its cause is known."""
    return [(got, words)] if words else []


class TestNormalLevels(Exercise):
    """The levels of NF4"""

    name = "normal_levels"
    reference = "minitrain.quantization.formats.grids:normal_levels"
    hidden = FORMATS
    OUTERMOST = "(1 / (2 * levels) + 1 / (2 * (levels - 1))) / 2"
    MISTAKES = (
        ((OUTERMOST, "1 / (2 * levels)"), "that is as if 2^b shares alone gave the outermost probability: it is the mean of two"),
        ((OUTERMOST, "(1 / 32 + 1 / 30) / 2"), "that goes from the outermost probability of 4 bits, whatever the bits"),
        ((OUTERMOST, "(1 / levels + 1 / (levels - 1)) / 2"), "the outermost probability leaves 1/(2k) above it, not 1/k"),
        (("(levels // 2 - 1, levels // 2)", "(levels // 2, levels // 2 - 1)"), "that is turned round: one more level lies above zero than below"),
        ((" / quantiles.max()", ""), "these are the quantiles themselves: divide by the largest"),
    )  # fmt: skip

    def levels(self, submission):
        calls = [(bits,) for bits in (4, 2, 3, 5, 4, 6)]
        infinite = "the quantile of 1 is infinite: the outermost probability lies below 1"
        with expect.because({"p must be in the range": infinite}):
            found = submission.run(probes.levels_of, calls)
        expect.left_alone(found, calls, ["bits"])
        return [(*call, turn["out"]) for call, turn in zip(calls, found)]

    @check(
        points=3,
        title="2^b levels, ascending from -1 to 1, one exactly 0, one more above it than below",
    )
    def test_shape(self, submission):
        for bits, got in self.levels(submission):
            what, half = f"normal_levels({bits})", 2 ** (bits - 1)
            is_tensor(got, torch.float32, (2 * half,), what)
            expect.that(
                got.isfinite().all(), f"{what} is not finite: the quantile of 1 is infinite"
            )
            counts = [int(side.sum()) for side in (got < 0, got == 0, got > 0)]
            expect.equal(
                counts, [half - 1, 1, half], what=f"{what}: how many lie below 0, on it, above"
            )
            expect.that(
                (got[1:] > got[:-1]).all(), f"the levels of {what} do not ascend: sort them"
            )
            expect.equal(
                got[[0, -1]],
                torch.tensor([-1.0, 1.0]),
                tol=1e-6,
                what=f"{what}: the ends, over the largest",
            )

    @check(points=5, title="equal steps of probability on each side, from the mean outermost one")
    def test_values(self, submission):
        for bits, got in self.levels(submission):
            want = variant(self.reference)(bits)
            wrong = hints(self.reference, self.MISTAKES, lambda f, bits=bits: f(bits))
            expect.equal(got, want, 2e-5, wrong, f"normal_levels({bits})")


# ---- quantization in blocks ----


def some_levels(count):
    """Ascending from -1 to 1, with a 0, not equally spaced."""
    inner = torch.rand(count - 3, dtype=torch.float64) * 1.9 - 0.95
    return torch.cat([inner, torch.tensor([-1.0, 0.0, 1.0])]).sort().values.float()


def blocks_of(x, size):
    flat = x.detach().double().flatten()
    return torch.nn.functional.pad(flat, (0, -len(flat) % size)).view(-1, size)


def decoded(codes, scales, levels, size):
    values = blocks_of(levels.double()[codes.long().clamp(max=len(levels) - 1)], size)
    return (values * scales.double()[:, None]).flatten()[: len(codes)]


class TestQuantizeBlocks(Exercise):
    """Quantization in blocks"""

    name = "quantize_blocks"
    reference = "minitrain.quantization.formats.weight:quantize_blocks"
    hidden = FORMATS
    FIT, ENCODE = "book.fit(tiles)", "book.encode(tiles, params)"
    MISTAKES = (
        ((FIT, "{'scale': tiles.amax(dim=1, keepdim=True)}"), "the scales are the largest numbers, not the largest magnitudes: a block's largest may be negative"),
        ((FIT, "{'scale': book.fit(tiles)['scale'].max().expand(len(tiles), 1)}"), "that is one scale for all blocks"),
        ((ENCODE, "torch.searchsorted(levels, tiles / params['scale'], right=True).sub(1).clamp(min=0).byte()"), "all codes are the level below: the border of two levels is their middle"),
        ((ENCODE, "torch.searchsorted(levels, tiles / params['scale']).byte()"), "all codes are the level above: the border of two levels is their middle"),
        ((ENCODE, "((tiles / params['scale'] + 1) / 2 * (len(levels) - 1)).round().byte()"), "all codes are right if the levels had equal distances; they have not"),
    )  # fmt: skip

    def are_nearest(self, submission, calls):
        """(x, levels, size) each; the results."""
        words = (
            "the last block may be shorter: pad the flattened numbers with zeros to whole blocks"
        )
        with expect.because({"invalid for input of size": words}):
            found = submission.run(probes.results_of, calls)
        expect.left_alone(found["calls"], calls, ["x", "levels", "size"])
        expect.that(
            not any(found["graphs"]),
            "the results hang on the graph of the weight, a parameter, and keep its floats alive: begin with x.detach()",
        )
        for call, ran in zip(calls, found["calls"]):
            self.is_nearest(call, ran["out"])
        return [ran["out"] for ran in found["calls"]]

    def is_nearest(self, call, out):
        """Scales are the blocks' largest magnitudes, and the reference's codes are no nearer."""
        x, levels, size = call
        what = f"x of shape {tuple(x.shape)}, {x.dtype}, blocks of {size}, {len(levels)} levels"
        expect.that(
            isinstance(out, tuple) and len(out) == 2,
            f"{what}: the result is {expect.show(out)}, a pair (codes, scales) is asked for",
        )
        codes, scales = out
        is_tensor(codes, torch.uint8, (x.numel(),), f"{what}: codes, one a number")
        is_tensor(
            scales,
            torch.float32,
            (-(-x.numel() // size),),
            f"{what}: scales, one a block of the flattened x",
        )
        right, _ = variant(self.reference)(*call)
        words = cause((codes, scales), self.reference, self.MISTAKES, lambda f: f(*call))
        amax = blocks_of(x, size).abs().amax(dim=1).float()
        empty = amax == 0
        expect.that(
            (scales[empty].abs() <= 1e-30).all(),  # nan fails
            f"{what}: a block of zeros has the scale {scales[empty].sum():.3g}: it is 0, or the smallest normal number",
        )
        expect.equal(
            scales[~empty],
            amax[~empty],
            1e-6,
            because(scales[~empty], words),
            f"{what}: the scales",
        )
        expect.that(
            int(codes.max()) < len(levels),
            f"{what}: a code is {int(codes.max())}, and there is no such level",
        )
        of_zeros = empty.repeat_interleave(size)[: len(codes)]
        expect.equal(
            codes[of_zeros],
            right[of_zeros],
            what=f"{what}: the codes of a block of zeros, the place of level 0",
        )
        flat, slack = (
            x.detach().double().flatten(),
            amax.double().repeat_interleave(size)[: len(codes)],
        )
        error, least = ((decoded(z, amax, levels, size) - flat).abs() for z in (codes, right))
        worse = error > least + 4e-6 * slack + 1e-37
        at = int(worse.int().argmax())
        expect.that(
            not worse.any(),
            f"{what}: {int(worse.sum())} codes are not those of the nearest level, the first at {at}: {flat[at]:.4g} in a "
            f"block of scale {slack[at]:.4g} has code {codes[at]}, {right[at]} is nearer. "
            + (words or "The fractions are those of x in float32, over the scale itself"),
        )

    @check(points=2, title="the nearest level, over the largest magnitude of each number's block")
    def test_nearest(self, submission):
        self.are_nearest(submission, [
            (torch.randn(24, 16), some_levels(16), 64),
            (torch.randn(5, 51), some_levels(16), 16),
            (torch.randn(7, 33), some_levels(16), 32),
            (torch.randn(512), some_levels(256), 256),
            (torch.randn(3, 4, 10), some_levels(11), 8),
        ])  # fmt: skip

    @check(points=2, title="an outlier coarsens its own block, and no other")
    def test_outlier(self, submission):
        levels, size, calm = some_levels(16), 64, torch.randn(8, 96)
        wild, place = calm.clone(), randint(0, calm.numel() - 1)
        wild.view(-1)[place] = -1000.0
        calls = [(calm, levels, size), (wild, levels, size)]
        (before, scales), (after, others) = self.are_nearest(submission, calls)
        same = torch.arange(calm.numel()) // size != place // size
        expect.that(
            torch.equal(before[same], after[same]) and int((scales != others).sum()) <= 1,
            f"an outlier at {place} changed codes or scales outside its block of {size}: each block has its own scale",
        )

    @check(
        points=3,
        title="a short last block, zeros, negative numbers only, one number, bfloat16, tiny weights",
    )
    def test_edges(self, submission):
        zeros = torch.zeros(4, 64)
        zeros[1] = torch.randn(64)
        self.are_nearest(submission, [
            (zeros, some_levels(16), 64),
            (torch.zeros(70), some_levels(16), 64),
            (zeros[:2] * 1.0, some_levels(11), 64),
            (zeros[:2] * 1.0, some_levels(256), 32),
            (-torch.rand(100) - 0.1, some_levels(16), 64),
            (torch.tensor([-0.7]), some_levels(16), 64),
            (torch.tensor(0.3), some_levels(16), 4),
            (torch.randn(65), some_levels(16), 64),
            (torch.randn(100, 80).bfloat16(), some_levels(16), 64),
            (torch.randn(100, 80).half(), some_levels(16), 64),
            (torch.randn(4, 40) * 1e-9, some_levels(16), 32),
            (torch.randn(4, 40) * 1e-28, some_levels(16), 32),
            (torch.randn(40, 6).T, some_levels(16), 16),
            (torch.randn(9, dtype=torch.float64), some_levels(5), 4),
        ])  # fmt: skip

    @check(points=3, title="no table of the distances to all levels")
    def test_memory(self, submission):
        for levels in (some_levels(16), some_levels(200)):
            x = torch.randn(randint(20, 40), 64)
            most = submission.run(probes.largest_made, x, levels, 64)
            expect.that(
                most <= 2.1 * x.nbytes,
                f"for {x.nbytes:,} bytes of numbers and {len(levels)} levels a tensor of {most:,} bytes was made: the "
                "distances to all levels are not needed, torch.bucketize finds the place among the borders",
            )


class TestPack(Exercise):
    """Two codes a byte"""

    name = "pack"
    reference = "minitrain.quantization.formats.weight:pack_pairs"
    hidden = FORMATS
    MISTAKES = (
        (("pack(codes, 4)", "pack(F.pad(codes, (0, len(codes) % 2)).view(-1, 2).flip(1), 4)"), "the halves are exchanged: the first code goes into the high half"),
        (("pack(codes, 4)", "pack(F.pad(codes, (0, len(codes) % 2)).view(2, -1).T, 4)"), "the first half of the codes went into the high halves: neighbours share a byte"),
        (("pack(codes, 4)", "pack(F.pad(codes, (len(codes) % 2, 0)), 4)"), "the last low half is 0 where the number is odd, not the first high one"),
    )  # fmt: skip

    def are_packed(self, submission, *counts):
        calls = [(torch.randint(16, (count,), dtype=torch.uint8),) for count in counts]
        found = submission.run(probes.results_of, calls)["calls"]
        expect.left_alone(found, calls, ["codes"])
        for call, ran in zip(calls, found):
            wrong = hints(self.reference, self.MISTAKES, lambda f, call=call: f(*call))
            what = f"the bytes of {len(call[0])} codes, two share a byte, and an odd last one has its own"
            is_tensor(ran["out"], torch.uint8, (-(-len(call[0]) // 2),), what)
            expect.equal(ran["out"], variant(self.reference)(*call), None, wrong, what)

    @check(points=2, title="neighbours share a byte, the first in the high half")
    def test_even(self, submission):
        self.are_packed(submission, 2, 64, 2 * randint(20, 60), 4096)

    @check(points=2, title="odd counts, one code, none")
    def test_odd(self, submission):
        self.are_packed(submission, 7, 1, 2 * randint(20, 60) + 1, 0, 5)


def some_scales(count):
    """Around their mean, by a twentieth of it."""
    return (1 + 0.05 * torch.randn(count)) * float(torch.rand(()) + 0.1)


class TestCompress(Exercise):
    """Double quantization"""

    name = "compress"
    reference = "minitrain.quantization.formats.weight:compress"
    hidden = FORMATS
    PARTS = ("scale_codes", "scale_outer", "scale_mean")
    MISTAKES = (
        (("scales.mean()", "scales.new_zeros(())"), "the mean is not taken out, so that half of the levels, the negative ones, are never used"),
        (("scales.mean()", "scales.median()"), "that is their median: the mean is taken out"),
        (("scales.mean()", "F.pad(scales, (0, -len(scales) % size)).mean()"), "that is the mean with the zeros of the padding"),
        (("scales.mean()", "scales[scales > 0].mean()"), "that is the mean of those that are not 0: the mean is of all scales"),
        (("scales - mean, levels", "scales, levels"), "the scales themselves were quantized: the mean is to be taken out first"),
    )  # fmt: skip

    def are_near(self, submission, calls):
        """Each scale comes back as near as from the reference."""
        found = submission.run(probes.results_of, calls)["calls"]
        expect.left_alone(found, calls, ["scales", "levels", "size"])
        for call, ran in zip(calls, found):
            self.is_near(call, ran["out"])

    def is_near(self, call, held):
        scales, levels, size = call
        count, what = len(scales), f"{len(scales)} scales in blocks of {size}"
        is_dict = isinstance(held, dict) and set(held) == set(self.PARTS)
        expect.that(
            is_dict, f"got {expect.show(held)}: a dict with {', '.join(self.PARTS)} is asked for"
        )
        is_tensor(held["scale_codes"], torch.uint8, (count,), f"{what}: scale_codes")
        is_tensor(held["scale_outer"], torch.float32, (-(-count // size),), f"{what}: scale_outer")
        is_tensor(
            held["scale_mean"], torch.float32, (), f"{what}: scale_mean, one number for all scales,"
        )
        words = cause(held, self.reference, self.MISTAKES, lambda f: f(*call), 1e-5)
        want = variant(self.reference)(*call)
        mean = held["scale_mean"]
        expect.equal(mean, want["scale_mean"], 1e-5, because(mean, words), f"{what}: scale_mean")
        outer = blocks_of(scales.double() - mean, size).abs().amax(dim=1).clamp(min=1e-30)
        got = held["scale_outer"].double().clamp(min=1e-30)
        expect.equal(
            got,
            outer,
            2e-4,
            because(got, words),
            f"{what}: scale_outer, of what is left when the mean of all is out",
        )
        error, least = (
            (
                decoded(z["scale_codes"], z["scale_outer"], levels, size) + z["scale_mean"] - scales
            ).abs()
            for z in (held, want)
        )
        slack = 1e-5 * outer.repeat_interleave(size)[:count] + 1e-6 * scales.abs()
        expect.that(
            (error <= least + slack).all(),  # nan fails
            f"{what}: read again as level x scale_outer + scale_mean, {int((~(error <= least + slack)).sum())} scales are "
            "not as near as the levels allow: quantize what is left when the mean is taken out, in blocks of `size`",
        )

    @check(points=4, title="the mean of all scales taken out, the rest to the nearest level")
    def test_near(self, submission):
        sizes = ((512, 256, 256), (96, 64, 32), (700, 256, 256))
        self.are_near(submission, [(some_scales(n), some_levels(k), size) for n, k, size in sizes])

    @check(points=2, title="one byte a scale, four for each block of them, four for the mean")
    def test_bytes(self, submission):
        for count, size in ((1024, 256), (randint(300, 700), 128)):
            call = some_scales(count), some_levels(256), size
            self.are_near(submission, [call])
            held, blocks = submission.run(probes.held_by, *call), -(-count // size)
            expect.that(
                sum(held.values()) <= size * blocks + 4 * blocks + 4,
                f"{count} scales in blocks of {size}: {held} bytes are held, {size * blocks}, {4 * blocks} and 4 are enough. "
                "One may be a view of something larger",
            )

    @check(points=2, title="one scale, equal ones, zeros among them, a short last block")
    def test_edges(self, submission):
        levels, zeros = some_levels(256), some_scales(200)
        zeros[::7] = 0
        self.are_near(submission, [
            (torch.tensor([0.4]), levels, 256), (torch.full((300,), 0.25), levels, 256), (torch.zeros(10), levels, 4),
            (zeros, levels, 64), (some_scales(257), levels, 256),
        ])  # fmt: skip


# ---- the layer ----

SHAPES_DIFFER = (
    "forward multiplies by the transpose, x @ Ŵ.T, and backward by Ŵ itself, dy @ Ŵ; each use remembers its own layer, "
    "on its own ctx"
)
CAST = "Ŵ comes in float32: cast it to the dtype of x, and in backward to that of dy"
MATMUL_LIKELY = {
    "incorrect number of gradients": "backward returns one gradient for each input of forward, and the layer is one of "
    "them: `return dx, None`",
    "mat1 and mat2 shapes": SHAPES_DIFFER,
    "size mismatch": SHAPES_DIFFER,
    "same dtype": CAST,
    "expected m1 and m2": CAST,
    "t() expects": "x may have one dimension, or three: take .T of Ŵ, never of x or dy",
}


class TestDequantizedMatmul(Exercise):
    """A frozen layer with its own backward"""

    name = "DequantizedMatmul"
    reference = "minitrain.quantization.layers.linear:_DequantizedMatmul"
    hidden = LAYER

    def run(self, submission, probe, *given):
        with expect.because(MATMUL_LIKELY):
            got = submission.run(probe, *given)
        expect.that(
            got["node"] == got["own"],
            f"the result's node is {got['node'] or 'missing'}, not {got['own']}: write forward and backward, and let "
            "DequantizedMatmul.apply make the node",
        )
        return got

    def are_alike(self, submission, shape, inside, outs, dtype=torch.float64):
        """x (shape, D) through D -> inside -> outs, beside what the reference makes of it."""
        x, dy = torch.randn(*shape).to(dtype), torch.randn(*shape[:-1], outs).to(dtype)
        given = x, torch.randn(inside, shape[-1]), torch.randn(outs, inside), dy
        got = self.run(submission, probes.multiplied, *given)
        want = probes.multiplied(variant(self.reference), *given)
        expect.left_alone([got], [(x, dy)], ["x", "dy"])
        for key, what in (
            ("out", "the output of two layers in a row"),
            ("other", "the output of the first layer's second use"),
            ("dx", "the gradient of x"),
            ("other_dx", "the gradient of the second use's x"),
        ):
            expect.that(
                got[key] is not None, f"{what} is None: return dy @ Ŵ for x, None for the layer"
            )
            is_tensor(got[key], dtype, want[key].shape, f"{what}, in x's dtype")
            tol = max(
                ROUNDING[dtype], ROUNDING[torch.float32]
            )  # a product in float32 is exact enough
            expect.equal(got[key], want[key], tol, what=f"{what}, from x of shape {tuple(shape)}")
        return got

    @check(points=3, title="output and gradient equal the plain product's (float64)")
    def test_gradients(self, submission):
        for shape in ((5, 8), (2, 3, 6), (1, 7)):
            self.are_alike(submission, shape, randint(3, 6), randint(9, 12))
        self.are_alike(submission, (4, 5), 5, 5)  # square: a wrong transpose fits

    @check(points=7, title="nothing waits for backward: neither Ŵ nor x")
    def test_waits(self, submission):
        for tokens, ins, outs in ((16, 64, 48), (40, 24, 96)):
            x, matrix = torch.randn(tokens, ins), torch.randn(outs, ins)
            found = self.run(submission, probes.what_waits, x, matrix)
            kinds = {x.nbytes: "as many as x has", matrix.nbytes: "as many as Ŵ has in floats"}
            for count, where in (
                (found["saved"], "are saved for backward"),
                (
                    found["held"] - found["out"],
                    "are held beside the result, on ctx, on the layer or elsewhere",
                ),
            ):
                expect.that(
                    count <= 0,
                    f"{count:,} bytes {where}, {kinds.get(count, 'of Ŵ and x or others')}: only the layer is remembered, "
                    "ctx.layer = layer. Ŵ is made again in backward, and a frozen weight's gradient needs no x",
                )

    @check(points=4, title="Ŵ is made once in forward and once in backward, and no gradient of it")
    def test_made(self, submission):
        got = self.are_alike(submission, (3, 6), 5, 4)
        for asked, uses in zip(got["asked"], (2, 1)):
            expect.that(
                asked == [False] * uses + [True] * uses,
                f"a layer that was used {uses} time(s) was asked for dequantize() {asked.count(False)} times in forward, "
                f"{asked.count(True)} times in backward: Ŵ is made once in each, for each use",
            )
        tokens, ins, outs = 6, randint(8, 20), randint(8, 20)
        given = torch.randn(tokens, ins), torch.randn(outs, ins)
        flops, product = (
            self.run(submission, probes.what_waits, *given)["flops"],
            2 * tokens * ins * outs,
        )
        expect.that(
            flops == 2 * product,
            f"forward and backward take {flops} FLOPs, two products have {2 * product}: a third one would be the gradient "
            "of the weight, which is frozen",
        )

    @check(points=2, title="bfloat16 and float32, one dimension, no tokens, no gradient wanted")
    def test_edges(self, submission):
        for dtype in (torch.bfloat16, torch.float32):
            self.are_alike(submission, (4, 16), 8, 12, dtype)
        for shape in ((6,), (0, 6), (2, 0, 6)):
            self.are_alike(submission, shape, 5, 4)
        found = submission.run(probes.without_gradient, torch.randn(3, 6), torch.randn(4, 6))
        expect.that(
            not found["plain"] and not found["quiet"],
            "a result asks for a gradient though x does not, or under torch.no_grad(): the layer is frozen",
        )


# ---- the pager ----


def some_touches(count, keys, page_bytes, reads=True):
    """Keys in drawn order, each of a size of its own; with reads also evictions, (None, count, _)."""
    sizes = {f"weight {k}": randint(1, 3 * page_bytes) for k in range(keys)}
    touches = [
        (key := choice(list(sizes)), sizes[key], not reads or choice((True, False)))
        for _ in range(count)
    ]
    if reads:
        touches[9::10] = [(None, randint(0, 4), True) for _ in touches[9::10]]
    return touches


class TestPageTable(Exercise):
    """A pager for optimizer state"""

    name = "PageTable"
    reference = "minitrain.memory.paged_optimizer:PageTable"
    hidden = PAGER
    POP = "dirty = self.resident.pop(page, False) or write"
    MISTAKES = (
        (("dirty = self.resident.pop(page, False)", "if page in self.resident:\n                self.resident[page] |= write\n                continue\n            dirty = False"),
         "that is as if a touch did not make a resident page the most recent (first in, first out)"),
        (("popitem(last=False)", "popitem()"), "that is as if the page touched last made room: it is the one touched longest ago"),
        ((" and not new", ""), "that counts pages of a new key as faults: they are made, and nothing is read"),
        (("self.page_bytes if dirty else 0", "self.page_bytes"), "that writes clean pages back too: the CPU still has them"),
        ((POP, "dirty = (self.resident.pop(page, False), write)[1]"), "that is as if a page that was written, and only read later, were clean again"),
    )  # fmt: skip

    def are_counted(self, submission, tables):
        """(capacity, page bytes, touches) each; the counters after each touch."""
        with expect.because({
            "OrderedDict mutated": "the table was changed while a loop went over it: take pages out with popitem(last=False)",
            "dictionary is empty": "evict_to takes pages out while there are more than `count`, and never below 0",
        }):  # fmt: skip
            found = submission.run(probes.paged_by, tables)
        right = probes.paged_by(variant(self.reference), tables)
        for (capacity, page_bytes, touches), got, want in zip(tables, found, right):
            at = next((i for i, pair in enumerate(zip(got, want)) if pair[0] != pair[1]), None)
            if at is not None:
                words = cause(
                    found, self.reference, self.MISTAKES, lambda f: probes.paged_by(f, tables)
                )
                expect.that(
                    False,
                    f"{capacity // page_bytes} frames of {page_bytes} bytes, after "
                    f"{'… ' * (at > 3)}{self.told(touches[max(at - 3, 0) : at + 1])}: faults, bytes in, bytes out and resident "
                    f"pages are {got[at]}, expected {want[at]}. {words}",
                )

    @staticmethod
    def told(touches):
        return ", ".join(
            f"evict_to({size})" if key is None else f"touch({key!r}, {size}, write={write})"
            for key, size, write in touches
        )

    @check(
        points=4,
        title="round and round: no fault while all fits, every page faults when one is too many",
    )
    def test_rounds(self, submission):
        page, count = choice((64, 100, 4096)), randint(5, 8)
        touches = [(key, page, True) for _ in range(4) for key in range(count)]
        frames = (count, count - 1, count + 2, 1)
        self.are_counted(submission, [(n * page, page, touches) for n in frames])

    @check(points=4, title="drawn touches: the page touched longest ago makes room")
    def test_least_recently_used(self, submission):
        self.are_counted(submission, [
            (randint(2, 7) * page + randint(0, page - 1), page, some_touches(60, 6, page, reads=False))
            for page in (randint(10, 90) for _ in range(4))
        ])  # fmt: skip

    @check(points=4, title="bytes out: dirty pages that go, and no clean ones; evict_to")
    def test_dirty(self, submission):
        self.are_counted(submission, [
            (randint(2, 7) * page, page, some_touches(60, 6, page)) for page in (randint(10, 90) for _ in range(4))
        ])  # fmt: skip

    @check(
        points=2,
        title="keys larger than all frames, a single frame, keys of any kind, empty tables",
    )
    def test_edges(self, submission):
        page = randint(10, 90)
        read = [
            ("a", page, False),
            ("b", page, False),
            ("a", page, False),
            ("b", page, True),
            ("a", page, False),
        ]
        big = [
            ("large", 5 * page + 1, True),
            ("small", 1, True),
            ("large", 5 * page + 1, False),
            ("small", 1, False),
        ]
        kinds = [
            ((7, "exp_avg"), page, True),
            ((7, "exp_avg_sq"), 2 * page, True),
            (7, page, True),
            ((7, "exp_avg"), page, True),
        ]
        emptied = [
            (None, 0, True),
            ("a", page, True),
            (None, 5, True),
            (None, 0, True),
            ("a", page, False),
            (None, 0, True),
        ]
        nothing = [
            ("a", page, True),
            ("none", 0, True),
            ("b", page, True),
            ("none", 0, True),
            ("a", page, True),
        ]
        self.are_counted(submission, [
            (page, page, read), (3 * page, page, big), (page, page, kinds), (2 * page, page, emptied),
            (9 * page, page, kinds), (page, page, nothing),
        ])  # fmt: skip


# ---- experiments and questions ----


def rows_by(table, column, names):
    """{name: row}; each of `names` must be there."""
    found = {row[column]: row for row in table}
    for name in names:
        expect.that(name in found, f"your table has no row of '{name}'")
    return found


SAMPLE_LEVELS = {
    "NF4": lambda: variant(TestNormalLevels.reference)(4),
    "INT4": lambda: torch.arange(-7, 8) / 7,
}


def sample_error(levels):
    """The error on the notebook's seeded normal numbers, in blocks of 64."""
    sample = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    tiles = blocks_of(sample, 64)
    scale = tiles.abs().amax(dim=1, keepdim=True)
    levels = levels.double()
    codes = torch.bucketize(tiles / scale, (levels[1:] + levels[:-1]) / 2)
    return (levels[codes] * scale - tiles).std().item()


class TestDatatypes(Experiment):
    """Datatypes compared"""

    name = "datatypes"
    rests_on = ("normal_levels", "quantize_blocks")
    NAMES = ("NF4", "INT4", "FP4", "NF3", "INT3")

    @check(points=3, title="NF4 errs least of 4 bits, on normal numbers and on the model's weights")
    def test_least(self, table):
        found = rows_by(table, "datatype", self.NAMES)
        for column in ("normal_error", "weight_error"):
            best = found["NF4"][column]
            for other in ("INT4", "FP4"):
                expect.that(
                    best < found[other][column],
                    f"{column}: {best:.4g} of NF4 is not below {found[other][column]:.4g} of {other}",
                )
            expect.that(found["NF3"][column] < found["INT3"][column], f"{column}: NF3 is not below INT3")  # fmt: skip
        for name, levels in SAMPLE_LEVELS.items():
            expect.close(found[name]["normal_error"], sample_error(levels()), tol=0.01, what=f"{name}, the error on normal numbers")  # fmt: skip

    @check(points=2, title="with a bit less the error doubles, and the predictions move further")
    def test_bits(self, table):
        found = rows_by(table, "datatype", self.NAMES)
        for four, three in (("NF4", "NF3"), ("INT4", "INT3")):
            ratio = found[three]["weight_error"] / found[four]["weight_error"]
            expect.that(1.6 < ratio < 2.8, f"{three} errs {ratio:.2f} times as much as {four}: about twice was to be expected")  # fmt: skip
            expect.that(
                found[three]["divergence"] > found[four]["divergence"] > 0,
                f"the divergence of {three} is not above that of {four}",
            )


class TestBits(Experiment):
    """Bits a weight"""

    name = "bits"
    rests_on = ("pack", "quantize_blocks", "compress")

    def pairs(self, table):
        found = {(row["block"], bool(row["double"])): row for row in table}
        for size in (32, 64, 128, 256):
            for double in (False, True):
                expect.that((size, double) in found, f"your table has no row of blocks of {size}, double {double}")  # fmt: skip
        return found

    @check(points=2, title="bytes held are those of the formula")
    def test_bytes(self, table):
        for (size, double), row in self.pairs(table).items():
            n, matrices = row["weights"], row["matrices"]
            want = n / 2 + (n / size + 4 * n / (256 * size) if double else 4 * n / size)
            expect.that(
                abs(row["bytes"] - want) <= 9 * matrices,
                f"blocks of {size}, double {double}: {row['bytes']} bytes are held, the formula has {want:.0f}",
            )
            expect.close(row["bits"], 8 * row["bytes"] / n, tol=1e-6, what="bits a weight")

    @check(points=1, title="8-bit scales cost next to nothing in error; larger blocks cost more")
    def test_error(self, table):
        found = self.pairs(table)
        for size in (32, 64, 128, 256):
            expect.close(found[size, True]["error"], found[size, False]["error"], tol=0.02, what=f"blocks of {size}, the error with 8-bit scales")  # fmt: skip
        expect.that(found[32, False]["error"] < found[256, False]["error"], "larger blocks should err more")  # fmt: skip


class TestSpared(Question):
    """What double quantization spares"""

    name = "spared_65b"
    rests_on = ("bits",)

    @check(points=5, title="GB of a model of 65 billion weights")
    def test_value(self, value, records):
        rows = {bool(r["double"]): r for r in expect.recorded(records, "bits") if r["block"] == 64}
        for double in (False, True):
            expect.that(double in rows, f"your table has no row of blocks of 64, double {double}")
        spared = rows[False]["bits"] - rows[True]["bits"]
        expect.close(
            value, 65 * spared / 8, tol=0.02, what="GB that are spared",
            hints=[
                (65 * spared, "these are billions of bits: 8 bits are a byte"),
                (spared, "that is bits a weight: the model has 65 billion of them"),
                (65 * rows[True]["bits"] / 8, "that is what the model takes with 8-bit scales: the difference is asked for"),
                (65 * spared / 8 * 1e9, "in GB: divide by 10^9"),
                (65 * spared / 8 * 1e9 / 2**30, "that is in GiB, of 2^30 bytes: GB of 10^9 are asked for"),
            ],
        )  # fmt: skip


class TestBudget(Experiment):
    """Three ways in one budget"""

    name = "budget"
    rests_on = ("normal_levels", "quantize_blocks", "pack", "compress", "DequantizedMatmul")
    WAYS = ("full", "LoRA", "QLoRA")

    @check(points=2, title="states are those of the closed form, within 1%")
    def test_states(self, table):
        for way, row in rows_by(table, "way", self.WAYS).items():
            expect.close(row["state_bytes"], row["formula_bytes"], tol=0.01, what=f"{way}, bytes of states")  # fmt: skip

    @check(points=3, title="QLoRA fits the budget, the two others do not")
    def test_fits(self, table):
        found = rows_by(table, "way", self.WAYS)
        fits = {way: bool(found[way]["fits"]) for way in self.WAYS}
        expect.that(
            fits == {"full": False, "LoRA": False, "QLoRA": True},
            f"which ways fit is {fits}: QLoRA alone should",
        )
        peaks = [found[way]["peak_bytes"] for way in self.WAYS]
        expect.that(peaks == sorted(peaks, reverse=True), f"the peaks do not fall from full to QLoRA: {peaks}")  # fmt: skip

    @check(points=2, title="each way learns, and QLoRA keeps most of LoRA's gain")
    def test_learns(self, table):
        found = rows_by(table, "way", self.WAYS)
        gains = {way: found[way]["before"] - found[way]["loss"] for way in self.WAYS}
        for way, gain in gains.items():
            expect.that(gain > 0.02, f"{way} gained {gain:.4f} nats: it did not learn")
        kept = gains["QLoRA"] / gains["LoRA"]
        expect.that(kept > 0.8, f"QLoRA gained {kept:.0%} of what LoRA did: 4 bits should cost less")  # fmt: skip


class TestMerge(Experiment):
    """The merge trap"""

    name = "merge"
    rests_on = ("budget",)
    WAYS = (
        "beside the base", "merged in 16 bits", "merged into 4 bits", "onto the original",
        "no adapter, original",
    )  # fmt: skip

    @check(points=2, title="merged in 16 bits the logits stay; merged into 4 they move")
    def test_moved(self, table):
        moved = {way: row["moved"] for way, row in rows_by(table, "way", self.WAYS).items()}
        kept, lost = moved["merged in 16 bits"], moved["merged into 4 bits"]
        expect.that(moved["beside the base"] == 0, "the reference should not move against itself")
        expect.that(lost > 3 * kept, f"merged into 4 bits the logits move by {lost:.3g}, in 16 bits by {kept:.3g}: three times as much was to be expected")  # fmt: skip

    @check(points=2, title="4 bits lose some of what was learned, 16 bits do not")
    def test_loss(self, table):
        loss = {way: row["loss"] for way, row in rows_by(table, "way", self.WAYS).items()}
        best = loss["beside the base"]
        kept, lost = loss["merged in 16 bits"] - best, loss["merged into 4 bits"] - best
        expect.that(lost > 0 and lost > 2 * abs(kept), f"the loss rises by {lost:.4f} in 4 bits and {kept:.4f} in 16")  # fmt: skip


class TestLostShare(Question):
    """What merging into 4 bits loses"""

    name = "lost_share"
    rests_on = ("merge",)

    @check(points=5, title="share of the gain")
    def test_value(self, value, records):
        loss = {row["way"]: row["loss"] for row in expect.recorded(records, "merge")}
        rows = {row["way"]: row for row in expect.recorded(records, "budget")}
        expect.that("merged into 4 bits" in loss, "your table has no row of 'merged into 4 bits'")
        expect.that("QLoRA" in rows, "your table 'budget' has no row of 'QLoRA'")
        expect.that("beside the base" in loss, "your table has no row of 'beside the base'")
        start, best = rows["QLoRA"]["before"], loss["beside the base"]
        lost, gain = loss["merged into 4 bits"] - best, start - best
        expect.close(
            value, lost / gain, tol=0.02, what="the share that is lost",
            hints=[
                (1 - lost / gain, "that is the share that is kept"),
                (100 * lost / gain, "a fraction is asked for, not percent"),
                (lost / start, "divide by the gain, start - best, not by the loss"),
                (lost / best, "divide by the gain, start - best, not by the loss"),
                (lost, "these are nats: divide by the gain, start - best"),
            ],
        )  # fmt: skip


class TestPages(Experiment):
    """Faults against frames"""

    name = "pages"
    rests_on = ("PageTable",)

    @check(points=3, title="none while all fits, every page in every step below that")
    def test_cliff(self, table):
        frames = {row["frames"] - row["pages"] for row in table}
        expect.that({-1, 0} <= frames, "measure with as many frames as pages, and with one less")
        for row in table:
            want = 0 if row["frames"] >= row["pages"] else row["pages"]
            what = f"{row['frames']} frames, {row['pages']} pages"
            expect.equal(float(row["faults"]), float(want), what=f"{what}: faults a step")
            for column in ("bytes_in", "bytes_out"):
                expect.equal(float(row[column]), float(want * row["page_bytes"]), what=f"{what}: {column} a step")  # fmt: skip


MODELS = {"7B": "llama2-7b", "13B": "llama2-13b", "70B": "llama2-70b", "405B": "llama3-405b"}
LARGE = {"full": FULL, "LoRA": LORA, "QLoRA": QLORA}


class TestCards(Experiment):
    """Which card holds which model"""

    name = "cards"
    rests_on = ("budget",)

    @check(points=3, title="twelve sums of bytes, by the closed form that your small models obey")
    def test_bytes(self, table):
        found = {(row["model"], row["way"]): row for row in table}
        for name, shape in MODELS.items():
            for way, tuning in LARGE.items():
                expect.that((name, way) in found, f"your table has no row of {name}, {way}")
                want = tuning_memory(preset(shape), tuning).total
                expect.close(found[name, way]["bytes"], want, tol=1e-3, what=f"{name}, {way}: bytes")  # fmt: skip


class TestH100s(Question):
    """Cards for the 405B with LoRA"""

    name = "h100s"
    rests_on = ("cards",)

    @check(points=5, title="cards of 80 GB, at the least")
    def test_value(self, value, records):
        found = {(r["model"], r["way"]): r for r in expect.recorded(records, "cards")}
        for way in LARGE:
            expect.that(("405B", way) in found, f"your table has no row of 405B, {way}")
        bytes_of = {way: found["405B", way]["bytes"] for way in LARGE}
        text = found["405B", "LoRA"][
            "activation_bytes"
        ]  # of 512 tokens; 8,192 are 16 times as many
        exact = {way: (bytes_of[way] - text) / (80e9 - 16 * text) for way in LARGE}
        cards = {way: math.ceil(exact[way]) for way in LARGE}
        evenly = (
            "that is with all cut evenly: a text's activations are not cut, each card has its own"
        )
        expect.equal(
            value, cards["LoRA"], what="the number of cards",
            hints=[
                (cards["QLoRA"], "that many hold it with QLoRA: LoRA in 16 bits is asked for"),
                (cards["full"], "that many hold it in full: LoRA in 16 bits is asked for"),
                (math.ceil((bytes_of["LoRA"] - text) / (80e9 - text)), "that is for texts of 512 tokens: of 8,192 activations are 16 times as large"),
                (math.ceil((bytes_of["LoRA"] + 15 * text) / 80e9), evenly),
                (exact["LoRA"], "cards are whole: round up"),
                (math.floor(exact["LoRA"]), "that many hold not all of it: round up"),
                (math.ceil(exact["LoRA"] / 8) * 8, "that is whole servers of eight: cards are asked for"),
            ],
        )  # fmt: skip
