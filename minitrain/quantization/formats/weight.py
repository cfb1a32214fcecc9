"""A weight in few bits: it knows its format, its bits a weight and its way back.

    held = NF4_BLOCKS.quantize(linear.weight)     # QuantizedWeight: packed codes and scales
    held.bits_per_weight                          # 4.5, scales counted
    held.dequantize()                             # (F, D) float32

Double quantization holds the scales themselves in 8 bits, in blocks of 256, after their mean is
taken out (they are all positive, and the 8-bit levels are not): bits a weight of blocks of 64

    4 + 32/64 = 4.5        4 + 8/64 + 32/(64·256) = 4.127

As in bitsandbytes, codes are those of the scales before that.
Paper: Dettmers et al. 2023, QLoRA (arXiv:2305.14314), section 3; the clip search: GPTQ's code,
github.com/IST-DASLab/gptq, quant.py. Shapes: F width out  D width in  G tiles  g a tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.errors import InputError
from minitrain.optimizers.adam8bit import BLOCK, dequantize_blocks, quantize_blocks
from minitrain.precision import blocks
from minitrain.precision.blocks import Quantized, Scaling
from minitrain.quantization.formats.grids import Codebook, Grid, Params
from minitrain.quantization.formats.packing import pack, unpack
from minitrain.quantization.formats.tiling import Blocks, Groups, Shape, Tiling


class Format(Protocol):
    @property
    def name(self) -> str:
        """By which `named` finds it again."""

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        """weight (F, D), finite, rounded to nearest; InputError where it cannot be."""

    def decode(self, tensors: Mapping[str, Tensor], shape: Shape) -> Tensor:
        """Decodes what `quantize` holds -> (F, D) float32."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix (F, D) as it is held: `tensors` are all its bytes."""

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
    """Codes on a grid, in tiles with a scale each; `double`: the scales in 8 bits too; `clip`: the
    range of a tile is shrunk to where its error is least, and what lies beyond it is clipped."""

    grid: Grid
    tiling: Tiling
    double: bool = False
    clip: bool = False

    @property
    def name(self) -> str:
        ends = ("-mse" if self.clip else "") + ("-dq" if self.double else "")
        return f"{self.grid.name}-{self.tiling.name}{ends}"

    def fit(self, tiles: Tensor, importance: Tensor | float = 1.0) -> Params:
        """tiles (G, g) -> what each is written with, (G, 1). `importance` (G, g): what an error of
        each number costs, for those that are clipped."""
        return best_clipped(self.grid, tiles, importance) if self.clip else self.grid.fit(tiles)

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        weight = checked(weight)
        tiles = self.tiling.cut(weight)
        params = self.fit(tiles)
        codes = self.tiling.join(self.grid.encode(tiles, params), weight.shape)
        return self.hold(codes, params)

    def hold(self, codes: Tensor, params: Params) -> QuantizedWeight:
        """Codes (F, D) uint8, however they were chosen, and what each tile is written with."""
        shape, bits = tuple(codes.shape), self.grid.bits
        tensors = {"codes": pack(codes, bits)}
        for name, value in params.items():
            if name == "scale":
                scale = value.flatten()
                tensors |= compress(scale) if self.double else {"scale": scale}
            else:
                tensors[name] = pack(value, bits)
        return QuantizedWeight(self, shape, tensors)

    def decode(self, tensors: Mapping[str, Tensor], shape: Shape) -> Tensor:
        count = shape[0] * shape[1]
        scale = (expand(tensors) if self.double else tensors["scale"]).unsqueeze(1)  # (G, 1)
        if isinstance(self.grid, Codebook):
            tile = self.tiling.size if isinstance(self.tiling, (Blocks, Groups)) else 1
            if tile % 2 == 0 and len(scale) * tile == count:  # none is filled up
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
    """The narrow floats of `precision`, under their own scales: FP8, MX, NVFP4."""

    name: str
    scaling: Scaling

    def quantize(self, weight: Tensor) -> QuantizedWeight:
        held = blocks.quantize(checked(weight), self.scaling)
        tensors = {"data": held.data, "scale": held.scale, "outer": held.outer}
        return QuantizedWeight(self, held.shape, tensors)

    def decode(self, tensors: Mapping[str, Tensor], shape: Shape) -> Tensor:
        data, scale, outer = (tensors[name] for name in ("data", "scale", "outer"))
        return Quantized(data, scale, outer, shape, self.scaling).dequantize()


def checked(weight: Tensor) -> Tensor:
    """The matrix in float32, without gradient; InputError where no scale would fit it."""
    if weight.dim() != 2 or not weight.numel():
        raise InputError(
            f"a tensor of shape {tuple(weight.shape)} is no weight matrix (out, in): quantize the "
            "matrices of linear layers, and leave vectors as they are"
        )
    weight = weight.detach().float()
    if not weight.sum().isfinite() and not weight.isfinite().all():  # the sum is 50 times as fast
        bad = int((~weight.isfinite()).sum())
        raise InputError(
            f"{bad} of {weight.numel():,} weights are inf or nan, and no scale fits those: "
            "quantize a checkpoint from before training diverged"
        )
    return weight


SHRUNK = torch.arange(100, 20, -1) / 100  # 1.00, 0.99 … 0.21 of the range
NORM = 2.4  # more than 2: a large error counts for more than its square


def best_clipped(grid: Grid, tiles: Tensor, importance: Tensor | float = 1.0) -> Params:
    """The range, of 80, with the least Σ c·|w - ŵ|^2.4 over each tile (G, g), c the importance;
    among equals the widest. Few large weights are then worth less than finer levels for others."""
    best, least = grid.fit(tiles), tiles.new_full((len(tiles), 1), torch.inf)
    for share in SHRUNK.tolist():
        params = grid.fit(tiles * share)
        rounded = grid.decode(grid.encode(tiles, params), params)
        error = (rounded - tiles).abs_().pow_(NORM).mul_(importance).sum(dim=1, keepdim=True)
        better = error < least
        least = torch.where(better, error, least)
        best = {name: torch.where(better, params[name], best[name]) for name in best}
    return best


# ---- double quantization: scales (G,) > 0 in 8 bits ----


def compress(scale: Tensor) -> Params:
    """scales (G,) -> their codes, the scales of blocks of 256 of them, and their mean."""
    mean = scale.mean()
    codes, outer = quantize_blocks(scale - mean, signed=True)  # (⌈G/256⌉, 256), (⌈G/256⌉, 1)
    codes = codes.flatten()[: len(scale)].contiguous()
    return {"scale_codes": codes, "scale_outer": outer.flatten(), "scale_mean": mean}


def expand(tensors: Mapping[str, Tensor]) -> Tensor:
    """-> scales (G,). A level below 0 would turn the weights' signs round: at least 0."""
    codes = tensors["scale_codes"]
    rows = F.pad(codes, (0, -len(codes) % BLOCK)).view(-1, BLOCK)
    centred = dequantize_blocks(rows, tensors["scale_outer"].unsqueeze(1), True, like=codes)
    return (centred + tensors["scale_mean"]).clamp_(min=0)
