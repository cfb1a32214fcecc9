"""Faster, not only smaller: torch's own CPU kernels for weights of 8 and 4 bits.

One token at a time, a linear layer reads each weight once for two FLOPs, so it waits for memory:

    seconds >= max(bytes of W / bandwidth, 2·T·F·D / peak)        T tokens

and a weight of 8 bits, unpacked in registers, may take half of bfloat16's time, one of 4 bits and
scales of 16 in groups of 64 a bit over a quarter. From some T on the matmul is bound by FLOPs and
the unpacking, made again for every few tokens, comes on top: bfloat16 is faster, and more than
`few` tokens go another way (unpacked_blocks.py), where the CPU multiplies bfloat16 itself. Then W
is smaller and not faster: `bench/quantization.py` measures both sides.
`QuantLinear` writes Ŵ to memory in float32 and reads it again, and never is faster.

The kernels multiply bfloat16 activations and keep scales in bfloat16: the result is Ŵ's to about
0.5%. For float32 and float16 activations torch has no fast ones, so x is rounded to bfloat16.
Not for training: there is no gradient. Shapes: T tokens  D width in  F width out  g a group.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.quantization.formats.grids import Absmax, FullRange, ZeroPoint
from minitrain.quantization.formats.packing import unpack
from minitrain.quantization.formats.tiling import Groups, Rows
from minitrain.quantization.formats.weight import GridFormat, QuantizedWeight
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.layers.unpacked_blocks import int4_product, int8_product, tile_of

FOUR_BITS = (Absmax(4), FullRange(4), ZeroPoint(4))
GROUPS = (32, 64, 128, 256)  # that the 4-bit kernel has
ROWS = 16  # of W, that it takes at a time
COLUMNS = 16  # of W, that the 8-bit kernel takes at a time: of a rest it would read what is behind


class PackedLinear(nn.Module):
    """y = x Ŵ^T + bias, by a kernel's own layout of Ŵ; the result has x's dtype.

    `few`: the most tokens for which the kernel is the faster way, a round number near where the two
    take the same on one core with AVX-512.
    """

    few: int

    def __init__(self, layer: QuantLinear):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias

    def multiply(self, x: Tensor) -> Tensor:
        """x (T, D) bfloat16 -> (T, F)"""
        raise AssertionError(f"{type(self).__name__} must say which kernel multiplies")

    def multiply_many(self, x: Tensor) -> Tensor:
        """The same by the way for more than `few` tokens."""
        raise AssertionError(f"{type(self).__name__} must say how it unpacks its weight")

    @property
    def unpacks(self) -> bool:
        """True if many tokens take another path: without bfloat16 instructions the packed one is
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
    """Exchanges every `QuantLinear` that a kernel can read, in place; others stay.

    InputError where there is none, or the model is not on a CPU.
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
    """The least that a linear layer of so many weights takes for so many tokens, on a machine of
    `bandwidth` bytes/s and `peak` FLOP/s (`measure.clock`'s copy_bandwidth and matmul_peak)."""
    return max(weight_bytes / bandwidth, 2 * tokens * weights / peak)
