"""Block formats: a tile of numbers is divided by one scale, and fits a low-bit format.

One scale for a whole tensor is set by its largest number: with one outlier, all else is rounded to
0. A scale for each tile confines the damage to the outlier's own tile.

    recipe        elements   tile       scale                        bytes a number
    per tensor    E4M3/E5M2  all        float32                      1
    DeepSeek-V3   E4M3       1 x 128    2^k, rounded up              1 + 1/128
                             128 x 128  (weights)                    1 + 1/16384
    MXFP8         E4M3       1 x 32     E8M0: 2^k, rounded down      1 + 1/32
    MXFP4         E2M1       1 x 32     E8M0                         1/2 + 1/32
    NVFP4         E2M1       1 x 16     E4M3, under a float32 one    1/2 + 1/16

Tiles lie along K, the dimension that a matmul sums over, so each partial sum has one scale.
Papers: DeepSeek-V3 (arXiv:2412.19437, 3.3); OCP Microscaling Formats 1.0 and Rouhani et al. 2023
(arXiv:2310.10537); NVIDIA 2025 (arXiv:2509.25149). Lab: e04. Shapes: R rows  K columns  r x c tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from minitrain.precision.formats import E4M3, FloatFormat, cast, pack, round_to, unpack

Tile = tuple[int, int]
TINY = torch.finfo(torch.float32).tiny  # a smaller scale would have an infinite inverse
E8M0_BIAS, E8M0_NAN = 127, 255


# ---- a tile's scale, from its largest magnitude: (stored scales, one scale over all of them) ----


def float32_scale(amax: Tensor, form: FloatFormat) -> tuple[Tensor, Tensor]:
    """Maps the largest number to the largest of the format."""
    return (amax / form.largest).clamp_(min=TINY), amax.new_ones(())


def power_of_two_up(amax: Tensor, form: FloatFormat) -> tuple[Tensor, Tensor]:
    """The smallest 2^k that clamps nothing: dividing by it is exact (DeepSeek)."""
    fraction, exponent = torch.frexp(amax / form.largest)  # fraction · 2^exponent, 1/2 <= f < 1
    return _e8m0(exponent - (fraction == 0.5).int(), amax), amax.new_ones(())


def e8m0_scale(amax: Tensor, form: FloatFormat) -> tuple[Tensor, Tensor]:
    """OCP's rule: amax's power of two becomes the format's; larger numbers are clamped."""
    _, exponent = torch.frexp(amax)
    return _e8m0(exponent - 1 - form.largest_exponent, amax), amax.new_ones(())


def nvfp4_scale(amax: Tensor, form: FloatFormat) -> tuple[Tensor, Tensor]:
    """Scales in E4M3, and one in float32 that makes the largest of them 448."""
    outer = (amax.amax() / (form.largest * E4M3.largest)).clamp(min=TINY)
    inner = (amax / form.largest / outer).clamp(min=E4M3.smallest)
    return cast(inner, E4M3), outer


def _e8m0(exponent: Tensor, amax: Tensor) -> Tensor:
    """Codes of 2^exponent; a tile that holds an inf or NaN gets the code of NaN."""
    code = (exponent + E8M0_BIAS).clamp(0, E8M0_NAN - 1)
    code = torch.where(amax > 0, code, 0)
    return torch.where(amax.isfinite(), code, E8M0_NAN).to(torch.uint8)


def widen(scale: Tensor) -> Tensor:
    """Stored scales in float32; bytes are E8M0, 2^(code - 127)."""
    if scale.dtype != torch.uint8:
        return scale.float()
    power = torch.ldexp(torch.ones_like(scale, dtype=torch.float32), scale.int() - E8M0_BIAS)
    return power.masked_fill(scale == E8M0_NAN, torch.nan)


# ---- a quantized matrix ----


@dataclass(frozen=True)
class Scaling:
    """The format of a matrix (R, K): the elements' format, the tile (None: all), the scale."""

    element: FloatFormat
    tile: Tile | None
    fit: Callable[[Tensor, FloatFormat], tuple[Tensor, Tensor]]

    @property
    def symmetric(self) -> bool:
        """True if a matrix and its transpose have the same tiles."""
        return self.tile is None or self.tile[0] == self.tile[1]


@dataclass(frozen=True)
class Quantized:
    """A matrix (R, K) as stored: 8-bit floats, or two 4-bit codes a byte, and the scales."""

    data: Tensor
    scale: Tensor  # (⌈R/r⌉, ⌈K/c⌉)
    outer: Tensor  # ()
    shape: tuple[int, int]
    scaling: Scaling

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.data, self.scale, self.outer

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def values(self) -> Tensor:
        """The elements (R, K), before any scale, in float32."""
        return unpack(self.data, self.scaling.element)[:, : self.shape[1]]

    def scales(self) -> Tensor:
        """One scale for each element: (R, K), or (1, 1) for all."""
        return spread(widen(self.scale) * self.outer, self.scaling.tile, self.shape)

    def dequantize(self) -> Tensor:
        return self.values() * self.scales()

    def transpose(self) -> Quantized:
        """(K, R), bit for bit; only of 8-bit elements in symmetric tiles."""
        assert self.scaling.symmetric and self.scaling.element.dtype is not None, self.scaling
        return replace(
            self,
            data=self.data.t().contiguous(),
            scale=self.scale.t().contiguous(),
            shape=self.shape[::-1],
        )


def fake_quantize(
    x: Tensor, form: FloatFormat, tile: Tile | None = None, amax: Tensor | None = None
) -> Tensor:
    """Quantizes x (R, K) under float32 scales and back to float32, without packing."""
    amax = tile_amax(x, tile) if amax is None else amax
    scale = spread(float32_scale(amax, form)[0], tile, x.shape)
    return round_to(x / scale, form) * scale


def quantize(x: Tensor, scaling: Scaling, amax: Tensor | None = None) -> Quantized:
    """x (R, K) quantized. `amax` sets the scales, if it is not x's own (delayed scaling)."""
    x = x.float().contiguous()
    amax = tile_amax(x, scaling.tile) if amax is None else amax
    scale, outer = scaling.fit(amax, scaling.element)
    scaled = x / spread(widen(scale) * outer, scaling.tile, x.shape)
    even = F.pad(scaled, (0, x.shape[1] % 2)) if scaling.element.bits == 4 else scaled
    return Quantized(pack(even, scaling.element), scale, outer, tuple(x.shape), scaling)


def quantize_transposed(x: Tensor, quantized: Quantized) -> Quantized:
    """x (R, K) and its `quantize` -> x^T (K, R) in tiles along R: requantized if tiles differ."""
    if quantized.scaling.symmetric and quantized.scaling.element.dtype is not None:
        return quantized.transpose()
    return quantize(x.t(), quantized.scaling)


def retile(quantized: Quantized) -> Quantized:
    """(R, K) in tiles along K -> its transpose (K, R) in tiles along R, without the original.

    A weight's gradient sums over tokens, across the tiles of the forward's activations. If scales
    are powers of two, a number keeps its mantissa: only numbers that become subnormal in their new
    tile are rounded again.
    """
    return quantize(quantized.dequantize().t(), quantized.scaling)


def tile_amax(x: Tensor, tile: Tile | None) -> Tensor:
    """x (R, K) -> each tile's largest magnitude (⌈R/r⌉, ⌈K/c⌉); the edge is padded with zeros."""
    if tile is None:
        return x.abs().amax().reshape(1, 1)
    rows, columns = tile
    padded = F.pad(x.abs(), (0, -x.shape[1] % columns, 0, -x.shape[0] % rows))
    return rearrange(padded, "(i r) (j c) -> i j r c", r=rows, c=columns).amax(dim=(2, 3))


def spread(scale: Tensor, tile: Tile | None, shape: tuple[int, int]) -> Tensor:
    """Repeats each tile's scale for its elements: (⌈R/r⌉, ⌈K/c⌉) -> (R, K)."""
    if tile is None:
        return scale
    full = repeat(scale, "i j -> (i r) (j c)", r=tile[0], c=tile[1])
    return full[: shape[0], : shape[1]]
