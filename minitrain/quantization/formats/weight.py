"""A quantized weight, with its format, its bits per weight and its dequantization.

    held = named("nf4").quantize(linear.weight)   # QuantizedWeight: packed codes and scales
    held.bits_per_weight                          # 4.5, scales counted
    held.dequantize()                             # (F, D) float32

Double quantization stores the scales themselves in 8 bits, in blocks of 256, after subtracting
their mean (scales are all positive, 8-bit levels are not). Bits per weight with blocks of 64:

    4 + 32/64 = 4.5        4 + 8/64 + 32/(64·256) = 4.127

As in bitsandbytes, weight codes are computed with the scales before their quantization.
Paper: Dettmers et al. 2023, QLoRA (arXiv:2305.14314), section 3; the clip search: GPTQ's code,
github.com/IST-DASLab/gptq, quant.py. Shapes: F width out  D width in  G tiles  g a tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.errors import InputError
from minitrain.optimizers.adam8bit import BLOCK, dynamic_map
from minitrain.precision import blocks
from minitrain.precision.blocks import Quantized, Scaling
from minitrain.quantization.formats.grids import Codebook, Grid, Params
from minitrain.quantization.formats.tiling import Blocks, Groups, Shape, Tiling

WIDTHS = (2, 3, 4, 8)  # bits per code


@dataclass(frozen=True)
class QuantizedWeight:
    """A quantized matrix (F, D): `tensors` are all its stored bytes."""

    format: Format
    shape: Shape
    tensors: Mapping[str, Tensor]

    def dequantize(self) -> Tensor:
        """(F, D) float32."""
        return self.format.decode(self.tensors, self.shape)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / (self.shape[0] * self.shape[1])


@dataclass(frozen=True)
class GridFormat:
    """Codes on a grid, in tiles with a scale each; `double`: the scales in 8 bits too; `clip`: a
    tile's range is shrunk to where its error is least, and weights beyond it are clipped."""

    grid: Grid
    tiling: Tiling
    double: bool = False
    clip: bool = False

    @property
    def name(self) -> str:
        ends = ("-mse" if self.clip else "") + ("-dq" if self.double else "")
        return f"{self.grid.name}-{self.tiling.name}{ends}"

    def fit(self, tiles: Tensor, importance: Tensor | float = 1.0) -> Params:
        """tiles (G, g) -> each tile's parameters, (G, 1). `importance` (G, g): the cost of an error
        in each weight, for formats that clip."""
        return best_clipped(self.grid, tiles, importance) if self.clip else self.grid.fit(tiles)

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        """weight (F, D), finite, rounded to nearest; InputError if not finite."""
        weight = checked(weight)
        tiles = self.tiling.cut(weight)
        params = self.fit(tiles)
        codes = self.tiling.join(self.grid.encode(tiles, params), weight.shape)
        return self.hold(codes, params)

    def hold(self, codes: Tensor, params: Params) -> QuantizedWeight:
        """Codes (F, D) uint8, however they were chosen, and each tile's parameters."""
        tensors = {"codes": pack(codes, self.grid.bits)}
        scale = params["scale"].flatten()
        if self.double:
            tensors |= compress(scale, dynamic_map(signed=True), BLOCK)
        else:
            tensors["scale"] = scale
        if "zero" in params:
            tensors["zero"] = pack(params["zero"], self.grid.bits)
        return QuantizedWeight(self, tuple(codes.shape), tensors)

    def decode(self, tensors: Mapping[str, Tensor], shape: Shape) -> Tensor:
        count = shape[0] * shape[1]
        scale = (expand(tensors) if self.double else tensors["scale"]).unsqueeze(1)  # (G, 1)
        if isinstance(self.grid, Codebook):
            tile = self.tiling.size if isinstance(self.tiling, (Blocks, Groups)) else 1
            if tile % 2 == 0 and len(scale) * tile == count:  # no tile is padded
                return self.grid.unpack_tiles(tensors["codes"], scale).view(shape)
            levels = self.grid.unpack(tensors["codes"])[:count].view(shape)
            return self.tiling.join(self.tiling.cut(levels).mul_(scale), shape)
        codes = unpack(tensors["codes"], self.grid.bits, count).view(shape)
        params = {"scale": scale}
        if "zero" in tensors:
            params["zero"] = unpack(tensors["zero"], self.grid.bits, len(scale)).unsqueeze(1)
        return self.tiling.join(self.grid.decode(self.tiling.cut(codes), params), shape)


@dataclass(frozen=True)
class FloatFormat:
    """The narrow floats of `precision`, with their own scales: FP8, MX, NVFP4."""

    name: str
    scaling: Scaling

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        held = blocks.quantize(checked(weight), self.scaling)
        tensors = {"data": held.data, "scale": held.scale, "outer": held.outer}
        return QuantizedWeight(self, held.shape, tensors)

    def decode(self, tensors: Mapping[str, Tensor], shape: Shape) -> Tensor:
        data, scale, outer = (tensors[name] for name in ("data", "scale", "outer"))
        return Quantized(data, scale, outer, shape, self.scaling).dequantize()


Format = GridFormat | FloatFormat


def checked(weight: Tensor) -> Tensor:
    """The matrix in float32, without gradient; InputError where no scale can represent it."""
    if weight.dim() != 2 or not weight.numel():
        raise InputError(
            f"a tensor of shape {tuple(weight.shape)} is no weight matrix (out, in): quantize the "
            "matrices of linear layers, and leave vectors as they are"
        )
    weight = weight.detach().float()
    if not weight.sum().isfinite() and not weight.isfinite().all():  # the sum is 50 times faster
        bad = int((~weight.isfinite()).sum())
        raise InputError(
            f"{bad} of {weight.numel():,} weights are inf or nan, and no scale fits those: "
            "quantize a checkpoint from before training diverged"
        )
    return weight


SHRUNK = torch.arange(100, 20, -1) / 100  # 1.00, 0.99 … 0.21 of the range
NORM = 2.4  # more than 2: weighs large errors more than squares do


def best_clipped(grid: Grid, tiles: Tensor, importance: Tensor | float = 1.0) -> Params:
    """The one of 80 ranges with the least Σ c·|w - ŵ|^2.4 over each tile (G, g), c the importance;
    the widest of equals. Trades the error of few large weights for finer levels of the others."""
    best, least = grid.fit(tiles), tiles.new_full((len(tiles), 1), torch.inf)
    for share in SHRUNK.tolist():
        params = grid.fit(tiles * share)
        rounded = grid.decode(grid.encode(tiles, params), params)
        error = (rounded - tiles).abs_().pow_(NORM).mul_(importance).sum(dim=1, keepdim=True)
        better = error < least
        least = torch.where(better, error, least)
        best = {name: torch.where(better, params[name], best[name]) for name in best}
    return best


# ---- codes packed into bytes, the first in the highest bits ----


def pack(codes: Tensor, bits: int) -> Tensor:
    """codes uint8, each under 2^bits, of any shape -> ⌈n·bits / 8⌉ bytes uint8.

    4 bits   aaaabbbb                      byte >> 4 is the first code, as in bitsandbytes
    2 bits   aabbccdd
    3 bits   aaabbbcc cdddeeef ffggghhh    eight codes fill three bytes: padded to a multiple of
    eight
    """
    shifts, size, dtype = _layout(bits)
    codes = F.pad(codes.flatten(), (0, -codes.numel() % len(shifts)))
    units = codes.to(dtype).unflatten(0, (-1, len(shifts))) << codes.new_tensor(shifts, dtype=dtype)
    words = units.sum(dim=1, dtype=dtype)  # no two codes share a bit
    return torch.stack([(words >> 8 * i) & 255 for i in reversed(range(size))], 1).byte().flatten()


def pack_pairs(codes: Tensor) -> Tensor:
    """Codes under 16, of any shape -> bytes (⌈n/2⌉,), the first of two in the high half."""
    return pack(codes, 4)


def unpack(held: Tensor, bits: int, count: int) -> Tensor:
    """bytes -> the first `count` codes (count,) uint8."""
    shifts, size, dtype = _layout(bits)
    parts = held.unflatten(0, (-1, size)).to(dtype)  # (units, size)
    word = parts[:, 0]
    for i in range(1, size):
        word = (word << 8) | parts[:, i]
    codes = (word.unsqueeze(1) >> held.new_tensor(shifts, dtype=dtype)) & (2**bits - 1)
    return codes.byte().flatten()[:count]


def _layout(bits: int) -> tuple[list[int], int, torch.dtype]:
    """Positions of the codes in a unit, the unit's bytes, and an integer type that holds it."""
    assert bits in WIDTHS, f"codes of {bits} bits"
    size = 3 if bits == 3 else 1
    return list(range(8 * size - bits, -1, -bits)), size, torch.uint8 if size == 1 else torch.int32


# ---- double quantization: scales (G,) > 0 in 8 bits ----


def quantize_blocks(x: Tensor, levels: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """x, of any shape -> codes (n,) uint8 and scales (G,) float32, G = ⌈n/size⌉.

    `levels` (k,) ascend from -1 to 1, k <= 256. x, flattened, is cut into blocks of `size`; a
    block's scale is its largest magnitude, a number's code the level nearest to number / scale.
    """
    book = Codebook("levels", tuple(levels.tolist()))
    tiles = Blocks(size).cut(x.detach().float())
    params = book.fit(tiles)
    return book.encode(tiles, params).flatten()[: x.numel()].clone(), params["scale"].flatten()


def compress(scales: Tensor, levels: Tensor, size: int) -> Params:
    """scales (G,) -> `scale_codes` (G,), `scale_outer` (⌈G/size⌉,), `scale_mean` ().

    The mean is subtracted first: scales are all positive, and half of the levels are not.
    """
    mean = scales.mean()
    codes, outer = quantize_blocks(scales - mean, levels, size)
    return {"scale_codes": codes, "scale_outer": outer, "scale_mean": mean}


def expand(tensors: Mapping[str, Tensor]) -> Tensor:
    """-> scales (G,). Clamped at 0: a negative scale would flip the weights' signs."""
    codes = tensors["scale_codes"]
    levels = dynamic_map(signed=True).to(codes.device)
    outer = tensors["scale_outer"].repeat_interleave(BLOCK)[: len(codes)]
    return (levels[codes.int()] * outer + tensors["scale_mean"]).clamp_(min=0)
