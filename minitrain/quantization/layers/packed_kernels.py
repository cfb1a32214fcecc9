"""Torch's own CPU kernels for 8- and 4-bit weights, which gain speed as well as memory.

One token at a time, a linear layer reads each weight once for two FLOPs, so it waits for memory:

    seconds >= max(bytes of W / bandwidth, 2·T·F·D / peak)        T tokens

so an 8-bit weight, unpacked in registers, may take half of bfloat16's time, and a 4-bit one with
16-bit scales in groups of 64 slightly over a quarter. Beyond some T the matmul is bound by FLOPs,
and unpacking, repeated for every few tokens, adds to it: bfloat16 is faster, so more than `few`
tokens take another path where the CPU has bfloat16 instructions:

    for each block of 512 rows:   codes -> bfloat16 W (512, D)    y[:, block] = x W^T

Each weight is unpacked once, into one buffer that all blocks share: 512·D numbers, not F·D; a fresh
buffer per block would cost more in page faults than in arithmetic. Factors that do not depend on
the column are applied outside: int8's scale to y, and int4's shift to a group's sum of x. Cost: a
pass over F·D codes for int8 (read 1 byte, write 2), five for int4, on top of the plain matmul,
whatever the number of tokens. With many tokens W is thus smaller but not faster:
`bench/quantization.py` measures both cases. `QuantLinear` writes Ŵ to memory in float32 and reads
it again, and is never faster.

The kernels multiply bfloat16 activations and keep scales in bfloat16: the result is Ŵ's to about
0.5%. For float32 and float16 activations torch has no fast ones, so x is rounded to bfloat16.
Not for training: there is no gradient. Shapes: T tokens  D width in  F width out  g a group
h half a tile's rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from einops import rearrange
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.quantization.formats.grids import Absmax, ZeroPoint
from minitrain.quantization.formats.tiling import Groups, Rows
from minitrain.quantization.formats.weight import GridFormat, QuantizedWeight, unpack
from minitrain.quantization.layers.linear import QuantLinear

FOUR_BITS = (Absmax(4), Absmax(4, full=True), ZeroPoint(4))
GROUPS = (32, 64, 128, 256)  # supported by the 4-bit kernel
ROWS = 16  # of W per step
COLUMNS = 16  # of W per step of the 8-bit kernel, which would read past a remainder
BLOCK = 512  # rows: half takes as long, all of W at once over three times as long at 16 tokens
TILES = (32, 16)  # h: torch's layout has tiles of 64 rows with AVX-512, of 32 without


class PackedLinear(nn.Module, ABC):
    """y = x Ŵ^T + bias, by a kernel's own layout of Ŵ; the result has x's dtype.

    `few`: the most tokens for which the kernel is faster, a round number near the break-even point
    on one core with AVX-512.
    """

    few: int

    def __init__(self, layer: QuantLinear):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias

    @abstractmethod
    def multiply(self, x: Tensor) -> Tensor:
        """x (T, D) bfloat16 -> (T, F)"""

    @abstractmethod
    def multiply_many(self, x: Tensor) -> Tensor:
        """The same by the path for more than `few` tokens."""

    @property
    def unpacks(self) -> bool:
        """True if many tokens take another path: without bfloat16 instructions that path is
        slower."""
        return torch.cpu._is_avx512_bf16_supported()

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> (..., F); InputError where a gradient would be lost."""
        if x.requires_grad and torch.is_grad_enabled():
            raise InputError(
                "the packed kernels have no gradient: run under torch.no_grad(), or train with the "
                "QuantLinear layers from before accelerate()"
            )
        rows = x.reshape(-1, self.in_features).bfloat16()  # (T, D)
        many = len(rows) > self.few and self.unpacks
        y = (self.multiply_many(rows) if many else self.multiply(rows)).to(x.dtype)
        y = y if self.bias is None else y + self.bias.to(x.dtype)
        return y.view(*x.shape[:-1], self.out_features)


class Int8PackedLinear(PackedLinear):
    few = 16

    def __init__(self, layer: QuantLinear):
        super().__init__(layer)
        held = layer.weight.tensors
        codes = (held["codes"] ^ 128).view(torch.int8)  # code - 128
        self.register_buffer("codes", codes.view(self.out_features, -1))
        self.register_buffer("scale", held["scale"].bfloat16())

    def multiply(self, x: Tensor) -> Tensor:
        return torch.ops.aten._weight_int8pack_mm(x, self.codes, self.scale)

    def multiply_many(self, x: Tensor) -> Tensor:
        return int8_product(x, self.codes, self.scale)


class Int4PackedLinear(PackedLinear):
    """The kernel's weight is (code - 8)·scale + shift: a zero point becomes a shift."""

    few = 48

    def __init__(self, layer: QuantLinear):
        super().__init__(layer)
        self.group = layer.format.tiling.size
        codes, scale, shift = _four_bits(layer.weight)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
        self.register_buffer("codes", packed)
        self.tile = tile_of(codes, packed)
        both = torch.stack([scale, shift], dim=-1).transpose(0, 1)  # (D/g, F, 2)
        self.register_buffer("scale_and_shift", both.bfloat16().contiguous())

    def multiply(self, x: Tensor) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(
            x, self.codes, self.group, self.scale_and_shift
        )

    def multiply_many(self, x: Tensor) -> Tensor:
        return int4_product(x, self.codes, self.scale_and_shift, self.tile)

    @property
    def unpacks(self) -> bool:
        return super().unpacks and self.tile is not None


def _four_bits(weight: QuantizedWeight) -> tuple[Tensor, Tensor, Tensor]:
    """codes (F, D), and scale and shift (F, D/g)."""
    rows = weight.shape[0]
    codes = unpack(weight.tensors["codes"], 4, rows * weight.shape[1]).view(weight.shape)
    scale = weight.tensors["scale"].view(rows, -1)
    if "zero" not in weight.tensors:
        return codes, scale, torch.zeros_like(scale)
    zero = unpack(weight.tensors["zero"], 4, scale.numel()).view(rows, -1)
    return codes, scale, (8 - zero.float()) * scale


def kernel_for(weight: QuantizedWeight) -> type[PackedLinear] | None:
    """The layer whose kernel reads this weight; None where torch has none."""
    form = weight.format
    if not isinstance(form, GridFormat) or form.double:
        return None
    if (form.grid, form.tiling) == (Absmax(8), Rows()):
        return Int8PackedLinear if weight.shape[1] % COLUMNS == 0 else None
    fits = isinstance(form.tiling, Groups) and form.tiling.size in GROUPS
    fits = fits and weight.shape[1] % form.tiling.size == 0 and weight.shape[0] % ROWS == 0
    return Int4PackedLinear if fits and form.grid in FOUR_BITS else None


def accelerate(model: nn.Module) -> nn.Module:
    """Replaces every `QuantLinear` that a kernel supports, in place; others stay.

    InputError where there is none, or the model is not on the CPU.
    """
    found = [(name, layer) for name, layer in model.named_modules() if type(layer) is QuantLinear]
    kernels = {name: kernel_for(layer.weight) for name, layer in found}
    if not any(kernels.values()):
        formats = ", ".join(sorted({layer.format.name for _, layer in found})) or "none"
        raise InputError(
            f"no layer has a format with a packed kernel (its formats: {formats}): quantize to "
            f"int8-row, of a width that {COLUMNS} divides, or to int4, int4f or int4z in groups "
            "of 32, 64, 128 or 256 that divide it"
        )
    if any(layer.codes.device.type != "cpu" for name, layer in found if kernels[name]):
        raise InputError("these kernels are for CPUs: move the model there with .cpu() first")
    for name, layer in found:
        if kernels[name] is not None:
            model.set_submodule(name, kernels[name](layer))
    return model


def roofline_seconds(
    weight_bytes: float, weights: int, tokens: int, bandwidth: float, peak: float
) -> float:
    """The minimum time of a linear layer with `weights` weights on `tokens` tokens, on a machine of
    `bandwidth` bytes/s and `peak` FLOP/s (`measure.clock`'s copy_bandwidth and matmul_peak)."""
    return max(weight_bytes / bandwidth, 2 * tokens * weights / peak)


# ---- many tokens ----


def int8_product(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """x (T, D) bfloat16, codes (F, D) int8, scale (F,) -> (T, F)"""
    y = x.new_empty(len(x), len(codes))
    buffer = x.new_empty(min(BLOCK, len(codes)), codes.shape[1])
    for columns, rows in zip(y.split(BLOCK, dim=1), codes.split(BLOCK)):
        weight = buffer[: len(rows)].copy_(rows)
        torch.mm(x, weight.t(), out=columns)
    return y.mul_(scale)


def tile_of(codes: Tensor, packed: Tensor) -> int | None:
    """h of the layout in which torch's kernel packs codes (F, D), or None if it is unknown.

    A tile of 2h rows has h bytes per column: row r in the lower four bits of byte r, row h + r in
    the upper. The layout is internal to torch, so it is compared, not assumed.
    """
    for half in TILES:
        if codes.shape[0] % (2 * half) == 0:
            lower, upper = rearrange(codes, "(n two h) d -> two n d h", two=2, h=half)
            if torch.equal(packed.flatten(), (lower | upper << 4).flatten()):
                return half
    return None


def int4_product(x: Tensor, packed: Tensor, scale_and_shift: Tensor, half: int) -> Tensor:
    """x (T, D) bfloat16, packed as `tile_of` says, scale_and_shift (D/g, F, 2) -> (T, F)"""
    groups, width, _ = scale_and_shift.shape
    scale, shift = scale_and_shift.unbind(dim=-1)  # (D/g, F)
    y = rearrange(x, "t (n g) -> t n g", n=groups).sum(dim=-1) @ shift  # (T, F)
    outputs = y.view(len(x), -1, 2, half)  # (T, F/2h, 2, h)
    scales = scale.view(groups, -1, 2, half)
    tiles = packed.view(width // (2 * half), x.shape[1], half)  # (F/2h, D, h)
    count = min(BLOCK // (2 * half), len(tiles))
    codes = packed.new_empty(x.shape[1] * count * half)
    weight = torch.empty_like(codes, dtype=x.dtype)
    for first in range(0, len(tiles), count):
        block = rearrange(tiles[first : first + count], "n d h -> d (n h)")  # bytes
        here = slice(first, first + count)
        for upper in (0, 1):
            w = _signed(block, upper, codes[: block.numel()], weight[: block.numel()])
            s = rearrange(scales[:, here, upper], "k n h -> k 1 (n h)")
            w.view(groups, -1, block.shape[1]).mul_(s / 16 if upper else s)
            outputs[:, here, upper] += rearrange(x @ w, "t (n h) -> t n h", h=half)
    return y


def _signed(block: Tensor, upper: int, codes: Tensor, out: Tensor) -> Tensor:
    """bytes (D, m) -> code - 8 of their lower four bits, or 16 times that of the upper; exact."""
    codes = torch.bitwise_and(block, 240 if upper else 15, out=codes.view(block.shape))
    codes.sub_(128 if upper else 8)
    return out.view(block.shape).copy_(codes.view(torch.int8))
