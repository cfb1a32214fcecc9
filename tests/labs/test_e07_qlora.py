"""The checks of lab e07: QLoRA, graded by levels, bytes held, what waits for backward, and faults."""

from __future__ import annotations

import math
from collections import OrderedDict
from random import choice, randint

import torch
from torch import Tensor

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check
from minitrain.lab.grading.difference import ROUNDING
from minitrain.lab.grading.verdicts import as_above, in_a_row
from minitrain.model.config import preset
from minitrain.planning.finetuning_memory import FULL, LORA, QLORA, tuning_memory
from minitrain.words import plural

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
TINY = torch.finfo(torch.float32).tiny


def is_tensor(value, dtype, shape, what):
    """Fails where it is another kind of thing."""
    expect.that(isinstance(value, Tensor), f"{what} is {expect.show(value)}: a tensor is asked for")
    expect.that(
        value.dtype == dtype and tuple(value.shape) == tuple(shape),
        f"{what} is {str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}, asked for is "
        f"{str(dtype).removeprefix('torch.')} of shape {tuple(shape)}",
    )


# ---- the levels ----


def quantile(p):
    return torch.special.ndtri(torch.as_tensor(p, dtype=torch.float64))


def levels_from(outermost, below, above):
    """Quantiles in equal steps of probability, `below` and `above` zero, over the largest."""
    sides = [
        torch.linspace(outermost, 0.5, n + 1, dtype=torch.float64)[:-1] for n in (below, above)
    ]
    levels = torch.cat([-quantile(sides[0]), quantile(sides[1]), torch.zeros(1)]).sort().values
    return (levels / levels.abs().max()).float()


def middles_of(k):
    """1 - 1/2k: the middle of the last of k equal shares."""
    return 1 - 1 / (2 * k)


def outermost(bits):
    return (middles_of(2**bits) + middles_of(2**bits - 1)) / 2


def mean_of_quantiles(bits):
    """A mistake: the probability of the mean of the two outermost quantiles."""
    ends = quantile([middles_of(2**bits), middles_of(2**bits - 1)])
    return torch.special.ndtr(ends.mean()).item()


def ends_apart(bits):
    """A mistake: each side from the middle of the last of its own shares, over its own largest."""
    half = 2 ** (bits - 1)
    above = levels_from(middles_of(2 * half), half - 1, half)
    below = levels_from(middles_of(2 * half - 1), half - 1, half)
    return torch.where(above > 0, above, below)


def mirrored(levels):
    """A mistake: below zero lie the levels above it, without the one next to zero."""
    above = levels[levels > 0]
    return torch.cat([-above.flip(0)[:-1], torch.zeros(1), above])


def normal_levels(bits):
    half = 2 ** (bits - 1)
    return levels_from(outermost(bits), half - 1, half)


class TestNormalLevels(Exercise):
    """The levels of NF4"""

    name = "normal_levels"
    reference = "minitrain.quantization.formats.grids:normal_levels"
    hidden = FORMATS

    BITS = (4, 2, 3, 5, 4, 6)

    def levels(self, submission):
        calls = [(bits,) for bits in self.BITS]
        infinite = "the quantile of 1 is infinite: the outermost probability lies below 1"
        with expect.because({"p must be in the range": infinite}):
            found = submission.run(probes.levels_of, calls)
        expect.left_alone(found, calls, ["bits"])
        return [(bits, call["out"]) for bits, call in zip(self.BITS, found)]

    @check(
        points=3,
        title="2^b levels, ascending from -1 to 1, one exactly 0, one more above it than below",
    )
    def test_shape(self, submission):
        self.are_shaped(self.levels(submission))

    def are_shaped(self, found):
        for bits, got in found:
            what, count = f"normal_levels({bits})", 2**bits
            expect.that(
                isinstance(got, Tensor), f"{what} gave {expect.show(got)}: a tensor is asked for"
            )
            zeros = int((got == 0).sum()) if got.ndim == 1 else 0
            words = ""
            if tuple(got.shape) == (count + 1,):
                words = f". With zero in their middle there is one less below it, {count // 2 - 1}, than above"
                if zeros > 1:
                    words = ". The quantile of ½ is zero, and both sides end there: count it once"
            elif bits != 4 and tuple(got.shape) == (16,):
                words = ". Those are as many as 4 bits have"
            expect.that(
                tuple(got.shape) == (count,),
                f"{what} has shape {tuple(got.shape)}: {count} levels are asked for{words}",
            )
            expect.that(
                got.isfinite().all(),
                f"{what} has levels that are infinite or nan: the quantile of 1 is infinite",
            )
            expect.that(
                zeros > 0,
                f"no level of {what} is exactly 0: the two sides are taken apart, {count // 2 - 1} levels below, "
                f"{count // 2} above, and zero itself",
            )
            expect.that(zeros == 1, f"{zeros} levels of {what} are 0: both sides end at ½, count it once")  # fmt: skip
            is_tensor(got, torch.float32, (count,), what)
            expect.that((got[1:] > got[:-1]).all(), f"the levels of {what} do not ascend: sort them")  # fmt: skip
            below, above = int((got < 0).sum()), int((got > 0).sum())
            expect.that(
                (below, above) == (count // 2 - 1, count // 2),
                f"{what} has {below} levels below zero and {above} above: {count // 2 - 1} and {count // 2} are asked for",
            )
            ends = got[0].item(), got[-1].item()
            expect.that(
                ends[1] <= 1 + 1e-6,
                f"the levels of {what} end at {ends[0]:.4g} and {ends[1]:.4g}: divide by the largest",
            )
            expect.that(
                abs(ends[0] + 1) < 1e-6 and abs(ends[1] - 1) < 1e-6,
                f"the levels of {what} end at {ends[0]:.4g} and {ends[1]:.4g}: both ends are the same quantile, "
                "so over the largest they are -1 and 1",
            )

    @check(points=5, title="equal steps of probability on each side, from the mean outermost one")
    def test_values(self, submission):
        found = self.levels(submission)
        with as_above(lambda: self.are_shaped(found)):
            self.are_right(found)

    def are_right(self, found):
        for bits, got in found:
            half = 2 ** (bits - 1)
            last, one_less = middles_of(2 * half), middles_of(2 * half - 1)
            want = normal_levels(bits)
            equal_levels = torch.cat([torch.arange(-half + 1, 1) / (half - 1), torch.arange(1, half + 1) / half])  # fmt: skip
            hints = [
                (levels_from(last, half - 1, half), f"that goes from 1 - 1/{4 * half}: the outermost probability is the mean of two"),
                (levels_from(one_less, half - 1, half), f"that goes from 1 - 1/{4 * half - 2}: the outermost probability is the mean of two"),
                (levels_from(outermost(4), half - 1, half), f"that goes from the outermost probability of 4 bits: here it is that of {2 * half} and {2 * half - 1} shares"),
                (levels_from(mean_of_quantiles(bits), half - 1, half), "that goes from the mean of the two quantiles: the mean of the two probabilities is taken, and then the quantile"),
                (ends_apart(bits), "that is as if each side goes to an end of its own: both go to the mean of the two"),
                (mirrored(want), "the levels below zero are those above with their sign turned, one left out: each side has steps of its own, from the outermost probability to ½"),
                (-want.flip(0), "that is turned round: one more level lies above zero than below"),
                (equal_levels, "that has equal distances: the steps are equal in probability, and the levels their quantiles"),
                (levels_from(1 - (1 - outermost(bits)) * 2, half - 1, half), "the outermost probability leaves 1/(2k) above it, not 1/k"),
            ]  # fmt: skip
            expect.equal(got, want, tol=2e-5, what=f"normal_levels({bits})", hints=hints)


# ---- quantization in blocks ----


def some_levels(count):
    """Ascending from -1 to 1, with a 0, not equally spaced."""
    inner = torch.rand(count - 3, dtype=torch.float64) * 1.9 - 0.95
    return torch.cat([inner, torch.tensor([-1.0, 0.0, 1.0])]).sort().values.float()


def blocks_of(x, size):
    flat = x.detach().double().flatten()
    return torch.nn.functional.pad(flat, (0, -len(flat) % size)).view(-1, size)


def decoded(codes, scales, levels, size):
    values = blocks_of(levels.double()[codes.long()], size)
    return (values * scales.double()[:, None]).flatten()[: len(codes)]


def rounding(scales, size, count):
    """What float32 may err by, number by number."""
    return (scales.double() * 4e-6).repeat_interleave(size)[:count] + 1e-37


class TestQuantizeBlocks(Exercise):
    """Quantization in blocks"""

    name = "quantize_blocks"
    reference = "minitrain.quantization.formats.weight:quantize_blocks"
    hidden = FORMATS

    def results(self, submission, calls):
        """(x, levels, size, codes, scales) of each call, with kinds and sizes as asked for."""
        short = (
            "the last block may be shorter: pad the flattened numbers with zeros to whole blocks"
        )
        with expect.because({"invalid for input of size": short}):
            found = submission.run(probes.results_of, calls)
        expect.left_alone(found["calls"], calls, ["x", "levels", "size"])
        expect.that(
            not any(found["graphs"]),
            "the results hang on the graph of the weight, a parameter, and keep its floats alive: begin with x.detach()",
        )
        return [(*call, *self.pair(call, ran["out"])) for call, ran in zip(calls, found["calls"])]

    @staticmethod
    def pair(call, out):
        x, _, size = call
        what = f"x of shape {tuple(x.shape)}, blocks of {size}"
        expect.that(
            isinstance(out, tuple) and len(out) == 2,
            f"{what}: the result is {expect.show(out)}, a pair (codes, scales) is asked for",
        )
        n, count = x.numel(), -(-x.numel() // size)
        rows = x.numel() // x.shape[-1] * -(-x.shape[-1] // size)
        if x.ndim > 1 and isinstance(out[1], Tensor) and rows != count:
            expect.that(
                out[1].numel() != rows,
                f"{what}: {rows} scales came, which is as if blocks ended with each row: they are those of the flattened x, {count}",
            )
        if isinstance(out[0], Tensor) and n != count * size:
            expect.that(
                out[0].numel() != count * size,
                f"{what}: {out[0].numel()} codes for {n} numbers: drop those of the padding",
            )
        if isinstance(out[0], Tensor):
            expect.that(
                out[0].numel() != n // size * size or n % size == 0,
                f"{what}: {out[0].numel()} codes for {n} numbers: the last block may be shorter, and counts, too",
            )
        is_tensor(out[0], torch.uint8, (n,), f"{what}: codes")
        is_tensor(out[1], torch.float32, (count,), f"{what}: scales")
        return out

    def nearest(self, x, levels, size, codes, scales):
        """Scales are the blocks' largest magnitudes, and no level lies nearer than the code's."""
        what = f"x of shape {tuple(x.shape)}, blocks of {size}, {len(levels)} levels"
        tiles = blocks_of(x, size)
        amax = tiles.abs().amax(dim=1).float()
        used = amax > 0
        hints = [
            (tiles.amax(dim=1).float()[used], "that is the largest number, not the largest magnitude: a block's largest may be negative"),
            (amax.max().expand_as(amax)[used], "that is one scale for all blocks"),
            (amax[used] / 7, "that is a step of INT4: levels go from -1 to 1, so the scale is the largest magnitude itself"),
            (tiles.std(dim=1).float()[used], "that is a standard deviation: the scale is the largest magnitude"),
        ]  # fmt: skip
        if x.numel() >= len(amax) and x.numel() % size:
            parts = x.detach().flatten().tensor_split(len(amax))
            even = torch.stack([part.abs().max() for part in parts]).float()[used]
            hints.append((even, f"those are blocks of nearly one size: each has {size} numbers, the last what is left"))  # fmt: skip
        if 0 < amax.max() < 1e-6:  # drawn so
            expect.that(
                scales.max() <= 2 * amax.max(),
                f"{what}: weights of at most {amax.max():.2g} have a scale of {scales.max():.2g}: what keeps 0/0 away has "
                "to be far smaller, torch.finfo(torch.float32).tiny",
            )
        expect.equal(scales[used], amax[used], tol=1e-6, what=f"{what}: the scales", hints=hints)
        top = int(codes.max())
        expect.that(
            top < len(levels), f"{what}: a code is {top}, and the last level has the code {len(levels) - 1}"
        )  # fmt: skip
        back = decoded(codes, scales, levels, size)
        flat = x.detach().double().flatten()
        own = amax.double().repeat_interleave(size)[: len(flat)]
        best = (flat[:, None] - own[:, None] * levels.double()).abs().amin(dim=1)
        worse = (back - flat).abs() - best > rounding(amax, size, len(flat))
        if worse.any():
            words = self.likely(flat, own, levels, codes, worse)
            if x.dtype in (torch.bfloat16, torch.float16):
                words += ". Its fractions are those of x in float32: divide there"
            elif amax.max() < 1e-6:
                words += f". The block's largest is at most {amax.max():.2g} here: nothing may be added to it"
            expect.that(False, f"{what}: {words}")

    @staticmethod
    def likely(flat, own, levels, codes, worse):
        at = int(worse.nonzero()[0])
        fraction = flat[at] / own[at].clamp(min=TINY)
        near = int((levels.double() - fraction).abs().argmin())
        text = (
            f"{int(worse.sum())} of {len(flat)} codes are not those of the nearest level, first at {at}: {fraction:.4f} of "
            f"its block's largest has code {int(codes[at])} ({levels[int(codes[at])]:.4f}), code {near} is {levels[near]:.4f}"
        )
        fractions = flat / own.clamp(min=TINY)
        distances = (levels.double()[:, None] - fractions).abs()
        off = distances.amin(0) > 1e-5  # a number that is on a level has its code in every way
        floor = (torch.searchsorted(levels.double(), fractions, right=True) - 1).clamp(min=0)
        ceil = torch.searchsorted(levels.double(), fractions).clamp(max=len(levels) - 1)
        evenly = ((fractions + 1) / 2 * (len(levels) - 1)).round().long()
        for wrong, words in (
            (floor, "the level below: the border of two levels is their middle"),
            (ceil, "the level above: the border of two levels is their middle"),
            (evenly, "right if the levels had equal distances; they have not"),
        ):
            if (codes[off].long() == wrong[off]).all():
                return f"{text}. All codes are {words}"
        return text

    @check(points=2, title="the nearest level, over the largest magnitude of each number's block")
    def test_nearest(self, submission):
        calls = [
            (torch.randn(24, 16), normal_levels(4), 64),
            (torch.randn(5, 51), some_levels(16), 16),
            (torch.randn(7, 33), normal_levels(4), 32),
            (torch.randn(512), some_levels(256), 256),
            (torch.randn(3, 4, 10), some_levels(11), 8),
        ]

        def right(calls):
            for result in self.results(submission, calls):
                self.nearest(*result)

        in_a_row(right, calls)

    @check(points=2, title="an outlier coarsens its own block, and no other")
    def test_outlier(self, submission):
        levels, size = normal_levels(4), 64
        calm = torch.randn(8, 96)
        wild = calm.clone()
        place = randint(0, calm.numel() - 1)
        wild.view(-1)[place] = -1000.0
        found = self.results(submission, [(calm, levels, size), (wild, levels, size)])
        (*_, before, scales), (*_, after, others) = found
        same = torch.arange(calm.numel()) // size != place // size
        expect.that(
            torch.equal(before[same], after[same]) and int((scales != others).sum()) <= 1,
            f"an outlier at {place} changed codes or scales outside its block of {size}: each block has its own scale",
        )
        for result in found:
            self.nearest(*result)

    @check(
        points=3,
        title="a short last block, zeros, negative numbers only, one number, bfloat16, tiny weights",
    )
    def test_edges(self, submission):
        levels, others = normal_levels(4), some_levels(11)
        while others[7] == 0 or others[9] == 0:  # the place of 0 is that of no other levels
            others = some_levels(11)
        zeros = torch.zeros(4, 64)
        zeros[1] = torch.randn(64)
        calls = [
            (zeros, levels, 64),
            (torch.zeros(70), levels, 64),
            (-torch.rand(100) - 0.1, levels, 64),
            (torch.tensor([-0.7]), levels, 64),
            (torch.tensor(0.3), levels, 4),
            (torch.randn(65), levels, 64),
            (self.narrow(torch.bfloat16, levels, 64), levels, 64),
            (self.narrow(torch.float16, levels, 64), levels, 64),
            (zeros[:2] * 1.0, others, 64),
            (zeros[:2] * 1.0, some_levels(256), 32),
            (torch.randn(4, 40) * 1e-9, levels, 32),
            (torch.randn(40, 6).T, levels, 16),
            (torch.randn(9, dtype=torch.float64), some_levels(5), 4),
        ]
        calls = [(x if x.ndim else x.view(1), *rest) for x, *rest in calls]
        results = self.results(submission, calls)
        for result in results:
            x, levels, size, codes, scales = result
            silent = blocks_of(x, size).abs().amax(dim=1) == 0
            back = blocks_of(decoded(codes.clamp(max=len(levels) - 1), scales, levels, size), size)
            zero = int((levels == 0).nonzero()[0])
            of_silent = codes[silent.repeat_interleave(size)[: len(codes)]]
            code = int(of_silent.max()) if len(of_silent) else 0
            is_elsewhere = scales.isfinite().all() and code < len(levels) - 1
            expect.that(
                (of_silent == zero).all() or not is_elsewhere,
                f"a number of a block of zeros has code {code}, the level 0 has code {zero} among these {len(levels)} levels",
            )
            expect.that(
                scales.isfinite().all() and (back[silent] == 0).all(),
                "a block of zeros does not come back as zeros: 0/0 is nan, so divide by a scale that is at least the "
                "smallest normal float (clamp)",
            )
            self.nearest(*result)
            expect.that(
                (of_silent == zero).all(),
                f"a number of a block of zeros has code {code}, the level 0 has code {zero}: 0/0 is nan, which lies beyond "
                "all borders. Divide by a scale that is at least the smallest normal float (clamp)",
            )
        for x, _, size, _, scales in results:
            of_zeros = scales[blocks_of(x, size).abs().amax(dim=1) == 0]
            expect.that(
                (of_zeros <= 1e-30).all(),
                f"a block of zeros has the scale {of_zeros.max() if len(of_zeros) else 0:.3g}, its largest magnitude is 0. "
                "What keeps 0/0 away belongs in the division alone, or is far smaller than any weight, "
                "torch.finfo(torch.float32).tiny",
            )

    @staticmethod
    def narrow(dtype, levels, size):
        """Numbers of which some get another code where they are divided in `dtype`."""
        borders = ((levels[1:] + levels[:-1]) / 2).double()
        while True:
            x = torch.randn(40, 50).to(dtype)
            tiles = blocks_of(x, size)
            fractions = tiles / tiles.abs().amax(dim=1, keepdim=True)
            near = (fractions[..., None] - borders).abs().amin(-1) > 1e-5
            rounded = tiles.to(dtype) / tiles.to(dtype).abs().amax(dim=1, keepdim=True)
            codes = (torch.bucketize(z.double(), borders) for z in (fractions, rounded))
            if ((next(codes) != next(codes)) & near).sum() > 1:
                return x

    @check(points=3, title="no table of the distances to all levels")
    def test_memory(self, submission):
        for levels in (normal_levels(4), some_levels(200)):
            x = torch.randn(randint(20, 40), 64)
            most = submission.run(probes.largest_made, x, levels, 64)
            expect.that(
                most <= 2.1 * x.nbytes,
                f"for {x.nbytes:,} bytes of numbers and {len(levels)} levels a tensor of {most:,} bytes was made: the "
                "distances to all levels are not needed, torch.bucketize finds the place among the borders",
            )


# ---- bytes ----


class TestPack(Exercise):
    """Two codes a byte"""

    name = "pack"
    reference = "minitrain.quantization.formats.weight:pack_pairs"
    hidden = FORMATS

    @staticmethod
    def packed(codes):
        codes = [*codes.tolist(), *[0] * (len(codes) % 2)]
        pairs = zip(codes[::2], codes[1::2])
        return torch.tensor([16 * a + b for a, b in pairs], dtype=torch.uint8)

    def equal(self, submission, counts):
        calls = [(torch.randint(16, (count,), dtype=torch.uint8),) for count in counts]
        found = submission.run(probes.results_of, calls)["calls"]
        expect.left_alone(found, calls, ["codes"])
        for (codes,), call in zip(calls, found):
            got, n = call["out"], len(codes)
            what = f"pack of {n} codes"
            if isinstance(got, Tensor):
                expect.that(
                    got.numel() != n or n < 2,
                    f"{what} gave {n} bytes: two codes share a byte",
                )
                expect.that(
                    got.numel() != n // 2 or n % 2 == 0,
                    f"{what} gave {n // 2} bytes: an odd last code has a byte of its own",
                )
            is_tensor(got, torch.uint8, ((n + 1) // 2,), what)
            padded = torch.nn.functional.pad(codes, (0, n % 2))
            half = len(padded) // 2
            turned = self.packed(padded.view(-1, 2).flip(1).flatten())
            halves = self.packed(torch.stack([padded[:half], padded[half:]], 1).flatten())
            hints = [
                (turned, "the halves are exchanged: the first code goes into the high half"),
                (halves, "the first half of the codes went into the high halves: neighbours share a byte"),
                (self.packed(torch.cat([padded[-1:], padded[:-1]])), "an odd last code stands in the high half of the last byte"),
            ]  # fmt: skip
            expect.equal(got, self.packed(codes), what=what, hints=hints)

    @check(points=2, title="neighbours share a byte, the first in the high half")
    def test_even(self, submission):
        self.equal(submission, (2, 64, 2 * randint(20, 60), 4096))

    @check(points=2, title="odd counts, one code, none")
    def test_odd(self, submission):
        self.equal(submission, (7, 1, 2 * randint(20, 60) + 1, 0, 5))


# ---- scales of scales ----

SPREAD = 0.05  # of drawn scales, around 1


def some_scales(count):
    return (1 + SPREAD * torch.randn(count)) * float(torch.rand(()) + 0.1)


def expanded(held, levels, size):
    left = decoded(held["scale_codes"], held["scale_outer"], levels, size)
    return left + held["scale_mean"].double()


class TestCompress(Exercise):
    """Double quantization"""

    name = "compress"
    reference = "minitrain.quantization.formats.weight:compress"
    hidden = FORMATS

    PARTS = ("scale_codes", "scale_outer", "scale_mean")

    def results(self, submission, calls):
        found = submission.run(probes.results_of, calls)["calls"]
        expect.left_alone(found, calls, ["scales", "levels", "size"])
        for (scales, _, size), call in zip(calls, found):
            held, count = call["out"], len(scales)
            expect.that(
                isinstance(held, dict) and set(held) == set(self.PARTS),
                f"the result is {expect.show(held)}: a dict with {', '.join(self.PARTS)} is asked for",
            )
            is_tensor(held["scale_codes"], torch.uint8, (count,), "scale_codes")
            is_tensor(
                held["scale_outer"],
                torch.float32,
                (-(-count // size),),
                f"scale_outer of {count} scales in blocks of {size}",
            )
            is_tensor(held["scale_mean"], torch.float32, (), "scale_mean, one number for all scales,")  # fmt: skip
        return [(*call, ran["out"]) for call, ran in zip(calls, found)]

    def near(self, scales, levels, size, held):
        """Each scale comes back as near as the levels allow when the mean of all is taken out."""
        mean = held["scale_mean"].item()
        what = f"{plural(len(scales), 'scale')}, blocks of {size}"
        true = scales.double().mean().item()
        words = "it is the mean of the scales"
        if mean == 0 and true:
            words = "the mean is not taken out, so that half of the levels, the negative ones, are never used"
        elif abs(mean - scales.median().item()) < 1e-6:
            words = "that is their median: bitsandbytes and QLoRA take the mean"
        elif abs(mean - (scales.min() + scales.max()).item() / 2) < 1e-6:
            words = "that is the middle between the smallest and the largest: the mean of all is taken out"
        elif abs(mean - scales[scales > 0].mean().item()) < 1e-6:
            words = "that is the mean of those that are not 0: the mean is of all scales"
        elif abs(mean - blocks_of(scales, size).mean().item()) < 1e-6:
            words = "that is the mean with the zeros of the padding"
        elif abs(mean - torch.stack([part.mean() for part in scales.split(size)]).mean()) < 1e-6:
            words = "that is the mean of the blocks' means: one mean, of all scales, is taken out"
        expect.that(
            abs(mean - true) <= 1e-5 * max(true, 1e-30),
            f"{what}: scale_mean is {mean:.6g}, expected {true:.6g}: {words}",
        )
        centred = blocks_of(scales.double() - mean, size)
        outer = centred.abs().amax(dim=1).float()
        parts = scales.double().split(size)
        by_block = torch.stack([(part - part.mean()).abs().max() for part in parts])
        expect.equal(
            held["scale_outer"].double(),
            torch.where((outer == 0) & (held["scale_outer"] <= 1e-30), held["scale_outer"], outer).double(),
            tol=2e-4,
            what=f"{what}: scale_outer",
            hints=[
                (blocks_of(scales, size).amax(dim=1).double(), "that is the largest scale: the mean is to be taken out first"),
                (by_block, "that is what is left when each block's own mean is taken out: it is the mean of all scales"),
                (centred.amax(dim=1), "that is the largest number that is left, not the largest magnitude"),
            ],
        )  # fmt: skip
        back = expanded(held, levels, size)
        own = outer.double().repeat_interleave(size)[: len(scales)]
        flat = scales.double() - mean
        best = (flat[:, None] - own[:, None] * levels.double()).abs().amin(dim=1)
        error = (back - scales.double()).abs()
        slack = 1e-5 * own + 1e-6 * scales.double().abs()
        expect.that(
            (error - best <= slack).all(),
            f"{what}: read again as level x scale_outer + scale_mean, {int((error - best > slack).sum())} scales are not as near "
            "as the levels allow: quantize what is left when the mean is taken out, in blocks of `size`",
        )

    @check(points=4, title="the mean of all scales taken out, the rest to the nearest level")
    def test_near(self, submission):
        calls = [(some_scales(n), some_levels(k), size) for n, k, size in ((512, 256, 256), (96, 64, 32), (700, 256, 256))]  # fmt: skip
        for result in self.results(submission, calls):
            self.near(*result)

    @check(points=2, title="one byte a scale, four for each block of them, four for the mean")
    def test_bytes(self, submission):
        for count, size in ((1024, 256), (randint(300, 700), 128)):
            given = some_scales(count), some_levels(256), size
            blocks = -(-count // size)
            most = {"scale_codes": size * blocks, "scale_outer": 4 * blocks, "scale_mean": 4}
            with (
                expect.because({"'items'": f"a dict with {', '.join(self.PARTS)} is asked for"}),
                as_above(lambda given=given: self.results(submission, [given])),
            ):
                held = submission.run(probes.held_by, *given)
                large = [name for name in held if held[name] > most.get(name, 0)]
                expect.that(
                    sum(held.values()) <= sum(most.values()),
                    f"{count} scales in blocks of {size}: {sum(held.values())} bytes are held ({held}), {most} are enough: "
                    f"{', '.join(large)} is too large. It may be a view of something larger, or of a wider dtype",
                )

    @check(points=2, title="one scale, equal ones, zeros among them, a short last block")
    def test_edges(self, submission):
        levels = some_levels(256)
        zeros = some_scales(200)
        zeros[::7] = 0
        calls = [(torch.tensor([0.4]), levels, 256), (torch.full((300,), 0.25), levels, 256),
                 (torch.zeros(10), levels, 4), (zeros, levels, 64), (some_scales(257), levels, 256)]  # fmt: skip
        for scales, levels, size, held in self.results(submission, calls):
            alike = (scales == scales[0]).all()
            expect.that(
                expanded(held, levels, size).isfinite().all(),
                f"{plural(len(scales), 'scale')} come back as nan or inf"
                + (
                    ": equal ones leave nothing but zeros when the mean is taken out"
                    if alike
                    else ""
                ),
            )
            self.near(scales, levels, size, held)


# ---- the layer ----


def is_own_node(found):
    expect.that(
        found["node"] == found["own"],
        f"the result's node is {found['node'] or 'missing'}, not {found['own']}: write forward and backward, and let "
        "DequantizedMatmul.apply make the node",
    )


SHAPES_DIFFER = (
    "forward multiplies by the transpose, x @ Ŵ.T, and backward by Ŵ itself, dy @ Ŵ; each use remembers its own layer, "
    "on its own ctx"
)
MATMUL_LIKELY = {
    "incorrect number of gradients": "backward returns one gradient for each input of forward, and the layer is one of "
    "them: `return dx, None`",
    "mat1 and mat2 shapes": SHAPES_DIFFER,
    "size mismatch": SHAPES_DIFFER,
    "same dtype": "Ŵ comes in float32: cast it to the dtype of x, and in backward to that of dy",
    "expected m1 and m2": "Ŵ comes in float32: cast it to the dtype of x, and in backward to that of dy",
    "t() expects": "x may have one dimension, or three: take .T of Ŵ, never of x or dy",
}


class TestDequantizedMatmul(Exercise):
    """A frozen layer with its own backward"""

    name = "DequantizedMatmul"
    reference = "minitrain.quantization.layers.linear:_DequantizedMatmul"
    hidden = LAYER

    def applied(self, submission, shape, inside, outs, dtype=torch.float64):
        """x (shape, D) through D -> inside -> outs: (what came, what is right)."""
        x = torch.randn(*shape).to(dtype)
        first, second = torch.randn(inside, shape[-1]), torch.randn(outs, inside)
        dy = torch.randn(*shape[:-1], outs).to(dtype)
        with expect.because(MATMUL_LIKELY):
            got = submission.run(probes.multiplied, x, first, second, dy)
        is_own_node(got)
        expect.left_alone([got], [(x, dy)], ["x", "dy"])
        return got, probes.multiplied(None, x, first, second, dy)

    def compare(self, got, want):
        names = {"out": "the output of two layers in a row", "other": "the output of the first layer's second use",
                 "dx": "the gradient of x", "other_dx": "the gradient of the second use's x"}  # fmt: skip
        for key, name in names.items():
            expect.that(
                got[key] is not None, f"{name} is None: return dy @ Ŵ for x, None for the layer"
            )
            hints = [(torch.zeros_like(want[key]), "that is zero: backward has to return dy @ Ŵ")]
            if isinstance(got[key], Tensor) and got[key].dtype != want[key].dtype:
                hints = [
                    (
                        got[key],
                        "cast Ŵ to x's dtype, in backward to that of dy, and not the other way round",
                    )
                ]
            elif (
                isinstance(got[key], Tensor)
                and got[key].dtype != torch.bfloat16
                and len(got[key].unique()) > 2
            ):
                for few, name_of in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
                    if torch.equal(got[key], got[key].to(few).to(got[key].dtype)):
                        words = f"each of its numbers is one of {name_of}: compute in x's dtype, and cast Ŵ to it"
                        hints.append((got[key], words))
            rounding = max(
                ROUNDING[want[key].dtype], ROUNDING[torch.float32]
            )  # of a product in float32
            expect.equal(got[key], want[key], tol=rounding, what=name, hints=hints)

    @check(points=3, title="output and gradient equal the plain product's (float64)")
    def test_gradients(self, submission):
        for shape in ((5, 8), (2, 3, 6), (1, 7)):
            self.compare(*self.applied(submission, shape, randint(3, 6), randint(9, 12)))
        self.compare(*self.applied(submission, (4, 5), 5, 5))  # square: a wrong transpose fits

    @check(points=7, title="nothing waits for backward: neither Ŵ nor x")
    def test_waits(self, submission):
        for tokens, ins, outs in ((16, 64, 48), (40, 24, 96)):
            x, matrix = torch.randn(tokens, ins), torch.randn(outs, ins)
            with expect.because(MATMUL_LIKELY):
                found = submission.run(probes.what_waits, x, matrix)
            is_own_node(found)
            saved = found["saved"]
            words = "nothing has to be saved: remember the layer, ctx.layer = layer"
            if saved in (matrix.nbytes, matrix.nbytes + x.nbytes):
                words = (
                    "that is Ŵ in floats, which is what was to be spared: make it again in backward"
                )
            elif saved == x.nbytes:
                words = "that is x, which is for the gradient of a weight: a frozen one has none"
            expect.that(saved == 0, f"{saved:,} bytes are saved for backward: {words}")
            more = found["held"] - found["out"]
            kept = {x.nbytes: "as many as x has. A frozen layer's backward has no use for x",
                    matrix.nbytes: "as many as Ŵ has. It is made again in backward"}  # fmt: skip
            expect.that(
                more <= 0,
                f"after forward {more:,} bytes are held beside the result, on ctx, on the layer or elsewhere: "
                f"{kept.get(more, 'neither Ŵ nor x waits')}. Only the layer itself may be remembered",
            )

    @check(points=4, title="Ŵ is made once in forward and once in backward, and no gradient of it")
    def test_made(self, submission):
        got, _ = self.applied(submission, (3, 6), 5, 4)
        for asked, uses in zip(got["asked"], (2, 1)):
            want = [False] * uses + [True] * uses
            expect.that(
                any(asked) or len(asked) != uses,
                "backward never asked for dequantize(): Ŵ was kept from forward. Make it again",
            )
            expect.that(
                asked == want,
                f"a layer that was used {uses} time(s) was asked for Ŵ in forward {asked.count(False)} and in backward "
                f"{asked.count(True)} times: once each for each use",
            )
        tokens, ins, outs = 6, randint(8, 20), randint(8, 20)
        found = submission.run(probes.what_waits, torch.randn(tokens, ins), torch.randn(outs, ins))
        product = 2 * tokens * ins * outs
        expect.that(
            found["flops"] == 2 * product,
            f"forward and backward take {found['flops']} FLOPs, two products have {2 * product}: a third one would be the "
            "gradient of the weight, which is frozen",
        )

    @check(points=2, title="bfloat16 and float32, one dimension, no tokens, no gradient wanted")
    def test_edges(self, submission):
        for dtype in (torch.bfloat16, torch.float32):
            got, want = self.applied(submission, (4, 16), 8, 12, dtype)
            for key in ("out", "dx"):
                expect.that(
                    got[key].dtype == dtype,
                    f"x is {dtype}, and {'the output' if key == 'out' else 'its gradient'} came in {got[key].dtype}: cast Ŵ to x's dtype",
                )
            self.compare(got, want)
        for shape in ((6,), (0, 6), (2, 0, 6)):
            self.compare(*self.applied(submission, shape, 5, 4))
        found = submission.run(probes.without_gradient, torch.randn(3, 6), torch.randn(4, 6))
        expect.that(
            not found["plain"] and not found["quiet"],
            "a result asks for a gradient though x does not, or under torch.no_grad(): the layer is frozen",
        )


# ---- the pager ----


class Simulated:
    """A page table with a policy, right or wrong in one way."""

    def __init__(self, capacity, page_bytes, mistake=""):
        self.page_bytes, self.frames, self.mistake = page_bytes, capacity // page_bytes, mistake
        self.resident, self.pages, self.counts = OrderedDict(), {}, [0, 0, 0]
        self.written, self.laid = set(), 0

    def touch(self, key, nbytes, write):
        is_new = key not in self.pages
        down = self.mistake in ("rounds down", "rounds down to one")
        count = (nbytes + (0 if down else self.page_bytes - 1)) // self.page_bytes
        if self.mistake == "rounds down to one":
            count = max(count, 1)
        pages = [(key, i) for i in range(count)]
        if self.mistake == "numbers given out again":
            first = max(self.resident, default=-1) + 1
            pages = list(range(first, first + count))
        if self.mistake == "overlap":
            pages = [len(self.pages) + i for i in range(len(pages))]
        if self.mistake == "bytes in a run" and is_new:
            end = self.laid + nbytes
            pages = range(self.laid // self.page_bytes, -(-end // self.page_bytes))
            self.laid = end
        self.pages.setdefault(key, pages)
        if self.mistake == "room for the whole key":
            self.evict_to(self.frames - len(self.pages[key]))
        for page in self.pages[key]:
            if self.mistake == "evicts before it looks":
                self.evict_to(self.frames - 1)
            here = page in self.resident
            if self.mistake == "evicts for a page that is here":
                self.evict_to(self.frames - 1)
            if not here and (not is_new or self.mistake == "counts new pages"):
                self.counts[0] += 1
                partial = self.mistake == "reads less than a page"
                self.counts[1] += min(self.page_bytes, nbytes) if partial else self.page_bytes
            dirty = self.resident.get(page, False) or write
            if self.mistake == "makes dirty pages":
                dirty = dirty or is_new
            if self.mistake == "dirty for ever":
                dirty = dirty or page in self.written
            if dirty:
                self.written.add(page)
            if self.mistake == "forgets that it was dirty":
                dirty = write
            if not (here and self.mistake == "first in, first out"):
                self.resident.pop(page, None)
            if page not in self.resident and self.mistake != "room for the whole key":
                self.evict_to(self.frames if self.mistake == "one too many" else self.frames - 1)
            self.resident[page] = dirty

    def evict_to(self, count):
        while len(self.resident) > max(count, 0):
            _, dirty = self.resident.popitem(last=self.mistake == "evicts the latest")
            if (dirty or self.mistake == "writes clean pages") and self.mistake != "never writes":
                self.counts[2] += self.page_bytes


MISTAKES = {
    "first in, first out": "that is as if a touch did not make a resident page the most recent (first in, first out)",
    "evicts the latest": "that is as if the page touched last made room: it is the one touched longest ago",
    "counts new pages": "that counts pages of a new key as faults: they are made, and nothing is read",
    "writes clean pages": "that writes clean pages back too: the CPU still has them",
    "forgets that it was dirty": "that is as if a page that was written, and only read later, were clean again",
    "dirty for ever": "that is as if a page stayed dirty when it was written back: read in again it is clean",
    "makes dirty pages": "that is as if a page were dirty because it is new: one that was made, and only read, is clean",
    "overlap": "that is as if keys shared pages: every key has pages of its own",
    "bytes in a run": "that is as if keys lay one behind the other, byte by byte, and shared pages: every key has pages of its own",
    "room for the whole key": "that is as if room were made once, for all pages of a key: it is made page by page, where one is to come in",
    "never writes": "dirty pages that go are written back: bytes_out",
    "rounds down": "that rounds the number of pages down: the rest of a tensor needs a page too",
    "rounds down to one": "that rounds the number of pages down: the rest of a tensor needs a page too",
    "numbers given out again": "that is as if two keys shared a page: a number of a page that is away was given out again",
    "reads less than a page": "that counts the bytes of the key: a fault brings in a whole page",
    "evicts before it looks": "that is as if a page made room even where the touched one is resident already",
    "evicts for a page that is here": "that is as if a page made room even where the touched one is resident already",
    "one too many": "that is as if there were one frame more: make room before the page comes in",
}
COUNTERS = ("faults", "bytes_in", "bytes_out", "resident pages")


def simulated(capacity, page_bytes, touches, mistake=""):
    """The counters after each touch."""
    table, found = Simulated(capacity, page_bytes, mistake), []
    for key, size, write in touches:
        table.evict_to(size) if key is None else table.touch(key, size, write)
        found.append([*table.counts, len(table.resident)])
    return found


def some_touches(count, keys, page_bytes, most=3, reads=True, evictions=True):
    """Keys in drawn order, each of a size of its own."""
    sizes = {f"weight {k}": randint(1, most * page_bytes) for k in range(keys)}
    touches = []
    for _ in range(count):
        if evictions and randint(0, 9) == 0:
            touches.append((None, randint(0, 4), True))
            continue
        key = choice(list(sizes))
        touches.append((key, sizes[key], not reads or choice((True, False))))
    return touches


def rounds(pages, page_bytes, steps):
    """An optimizer's way: all keys in order, step by step."""
    return [(k, page_bytes, True) for _ in range(steps) for k in range(pages)]


PAGE_LIKELY = {
    "OrderedDict mutated": "the table was changed while a loop went over it: take pages out with popitem(last=False)",
    "dictionary is empty": "evict_to takes pages out while there are more than `count`, and never below 0: with no page "
    "left there is nothing to take",
}


class TestPageTable(Exercise):
    """A pager for optimizer state"""

    name = "PageTable"
    reference = "minitrain.memory.paged_optimizer:PageTable"
    hidden = PAGER

    def compare(self, submission, tables, columns):
        with expect.because(PAGE_LIKELY):
            found = submission.run(probes.paged_by, tables)
        for (capacity, page_bytes, touches), got in zip(tables, found):
            want = simulated(capacity, page_bytes, touches)
            shown = [[row[c] for c in columns] for row in got]
            right = [[row[c] for c in columns] for row in want]
            if shown == right:
                continue
            at = next(i for i, pair in enumerate(zip(shown, right)) if pair[0] != pair[1])
            column = next(c for c in columns if got[at][c] != want[at][c])
            frames, words = capacity // page_bytes, self.likely(tables, found, columns)
            if not words and len(tables) > 1:
                (alone,) = submission.run(probes.paged_by, [(capacity, page_bytes, touches)])
                if [[row[c] for c in columns] for row in alone] == right:
                    words = (
                        "A table alone is right, and several at once are not: keep all in `self`"
                    )
            expect.that(
                False,
                f"{frames} frames of {page_bytes} bytes, after {self.told(touches[: at + 1])}: {COUNTERS[column]} is "
                f"{got[at][column]}, expected {want[at][column]}" + (f". {words}" if words else ""),
            )

    @staticmethod
    def likely(tables, found, columns):
        """The mistakes that give all that was counted in all tables."""
        words = [
            text
            for mistake, text in MISTAKES.items()
            if all(
                [row[c] for c in columns] == [given[c] for c in columns]
                for table, got in zip(tables, found)
                for row, given in zip(simulated(*table, mistake), got)
            )
        ]
        return ", or ".join(dict.fromkeys(words))

    @staticmethod
    def told(touches):
        """The last few, in words."""
        words = [
            f"evict_to({size})" if key is None else f"touch({key!r}, {size}, write={write})"
            for key, size, write in touches[-4:]
        ]
        return ("… " if len(touches) > 4 else "") + ", ".join(words)

    @check(
        points=4,
        title="round and round: no fault while all fits, every page faults when one is too many",
    )
    def test_rounds(self, submission):
        page, count = choice((64, 100, 4096)), randint(5, 8)
        tables = [(frames * page, page, rounds(count, page, 4)) for frames in (count, count - 1, count + 2, 1)]  # fmt: skip
        self.compare(submission, tables, (0, 3))

    @check(points=4, title="drawn touches: the page touched longest ago makes room")
    def test_least_recently_used(self, submission):
        tables = []
        for _ in range(4):
            page = randint(10, 90)
            touches = some_touches(60, 6, page, reads=False, evictions=False)
            tables.append((randint(2, 7) * page + randint(0, page - 1), page, touches))
        self.compare(submission, tables, (0, 1, 3))

    @check(points=4, title="bytes out: dirty pages that go, and no clean ones; evict_to")
    def test_dirty(self, submission):
        tables = []
        for _ in range(4):
            page = randint(10, 90)
            tables.append((randint(2, 7) * page, page, some_touches(60, 6, page)))
        self.compare(submission, tables, (0, 1, 2, 3))

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
        big = [("large", 5 * page + 1, True), ("small", 1, True), ("large", 5 * page + 1, False), ("small", 1, False)]  # fmt: skip
        kinds = [((7, "exp_avg"), page, True), ((7, "exp_avg_sq"), 2 * page, True), (7, page, True), ((7, "exp_avg"), page, True)]  # fmt: skip
        emptied = [(None, 0, True), ("a", page, True), (None, 5, True), (None, 0, True), ("a", page, False), (None, 0, True)]  # fmt: skip
        tables = [(page, page, read), (3 * page, page, big), (page, page, kinds), (2 * page, page, emptied), (9 * page, page, kinds)]  # fmt: skip
        self.compare(submission, tables, (0, 1, 2, 3))


# ---- experiments and questions ----


def rows_by(table, column, names):
    """{name: row}; each of `names` must be there."""
    found = {row[column]: row for row in table}
    for name in names:
        expect.that(name in found, f"your table has no row of '{name}'")
    return found


SAMPLE_LEVELS = {"NF4": lambda: normal_levels(4), "INT4": lambda: torch.arange(-7, 8) / 7}


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
