"""Quantization grids: equally spaced levels, or levels denser where normal weights are.

    absmax      w ~ scale·q            q = -m .. m, m = 2^(b-1) - 1    scale = max|w| / m
    full range  w ~ scale·q            q = -m-1 .. m                   scale = max|w| / (m + 1/2)
    zero point  w ~ scale·(q - zero)   q = 0 .. n,  n = 2^b - 1        scale = (max - min) / n
    codebook    w ~ scale·level[q]     16 levels in [-1, 1]            scale = max|w|

Zero stays exactly zero in all: min and max include it. |error| <= scale/2 in the first three (a
zero point that is rounded may cost the ends another half). Absmax leaves its lowest code unused, so
that w and -w have the same error. The full range uses it, as compressed-tensors does: this gains
most at few bits (8 levels for 7 at 3 bits), but w and -w may be rounded differently.

Every grid has `bits`, a `name` as the prefix of a format's (`int4`, `nf4`), and
    fit(tiles (G, g)) -> the parameters of each tile
    encode(x (G, n), params) -> codes (G, n) uint8, of the nearest levels
    decode(codes (G, n), params) -> the levels, in float32
A codebook may be any 16 numbers. NF4's are quantiles of the normal distribution, 7 below 0 and 8
above; FP4's are a float with 2 exponent bits and 1 of mantissa.
Paper: Dettmers et al. 2023, QLoRA (arXiv:2305.14314), appendix E.
Shapes: G tiles  g a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Params = dict[str, Tensor]  # "scale" and a tile's other parameters, each (G, 1)
TINY = torch.finfo(torch.float32).tiny  # the inverse of a smaller scale would be infinite


@dataclass(frozen=True)
class Absmax:
    """`full`: the lowest code is used too, and the largest weight is half a step beyond the last
    level."""

    bits: int
    full: bool = False

    @property
    def name(self) -> str:
        return f"int{self.bits}" + "f" * self.full

    @property
    def largest(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def fit(self, tiles: Tensor) -> Params:
        amax = tiles.abs().amax(dim=1, keepdim=True)
        return {"scale": (amax / (self.largest + 0.5 * self.full)).clamp(min=TINY)}

    def encode(self, x: Tensor, params: Params) -> Tensor:
        q = (x / params["scale"]).round().clamp(-self.largest - self.full, self.largest)
        return (q + 2 ** (self.bits - 1)).byte()

    def decode(self, codes: Tensor, params: Params) -> Tensor:
        return codes.float().sub_(2 ** (self.bits - 1)).mul_(params["scale"])


@dataclass(frozen=True)
class ZeroPoint:
    bits: int

    @property
    def name(self) -> str:
        return f"int{self.bits}z"

    @property
    def largest(self) -> int:
        return 2**self.bits - 1

    def fit(self, tiles: Tensor) -> Params:
        low, high = (end.unsqueeze(1) for end in torch.aminmax(tiles, dim=1))
        low, high = low.clamp(max=0), high.clamp(min=0)
        scale = (high / self.largest - low / self.largest).clamp(min=TINY)
        return {"scale": scale, "zero": (-low / scale).round().clamp(0, self.largest).byte()}

    def encode(self, x: Tensor, params: Params) -> Tensor:
        q = (x / params["scale"]).round() + params["zero"]
        return q.clamp(0, self.largest).byte()

    def decode(self, codes: Tensor, params: Params) -> Tensor:
        return codes.float().sub_(params["zero"]).mul_(params["scale"])


@dataclass(frozen=True)
class Codebook:
    """`levels[code]`; they need not ascend."""

    name: str
    levels: tuple[float, ...]
    bits: int = 4

    def fit(self, tiles: Tensor) -> Params:
        return {"scale": tiles.abs().amax(dim=1, keepdim=True).clamp(min=TINY)}

    def encode(self, x: Tensor, params: Params) -> Tensor:
        """The nearest level; halfway between two, the lower."""
        levels = torch.tensor(self.levels, device=x.device)
        order = levels.argsort()
        middles = (levels[order][:-1] + levels[order][1:]) / 2
        place = _place(x * (1 / params["scale"]), middles)
        return order.byte().index_select(0, place.flatten().int()).view(x.shape)

    def decode(self, codes: Tensor, params: Params) -> Tensor:
        levels = torch.tensor(self.levels, device=codes.device)
        chosen = levels.index_select(0, codes.flatten().int())  # twice as fast as levels[codes]
        return chosen.view(codes.shape).mul_(params["scale"])

    def unpack(self, held: Tensor) -> Tensor:
        """bytes (n,), of two codes each -> their levels (2n,), by one lookup in a table of 256
        pairs: a third of the time of splitting the codes first."""
        return self.pairs(held).index_select(0, held.int()).view(torch.float32)

    def unpack_tiles(self, held: Tensor, scale: Tensor) -> Tensor:
        """bytes of whole tiles (G·g/2,), g even, scale (G, 1) -> the weights (G, g). Works in
        pieces that are still in cache when multiplied: two thirds of the time."""
        pairs, room = self.pairs(held), held.new_empty(held.numel(), dtype=torch.int64)
        tiles = room.view(torch.float32).view(len(scale), -1)
        some = max(1, PIECE // tiles.shape[1])  # tiles a piece
        bytes_each = some * tiles.shape[1] // 2
        pieces = held.split(bytes_each), room.split(bytes_each), tiles.split(some)
        for codes, levels, piece, s in zip(*pieces, scale.split(some)):
            torch.index_select(pairs, 0, codes.int(), out=levels)
            piece.mul_(s)
        return tiles

    def pairs(self, held: Tensor) -> Tensor:
        """(256,): the two levels of each byte, as 8 bytes."""
        levels = torch.tensor(self.levels, device=held.device)
        return torch.cartesian_prod(levels, levels).view(torch.int64).flatten()


Grid = Absmax | ZeroPoint | Codebook
PIECE = 2**18  # weights: 1 MB of them in float32
CELLS = 1024  # per unit
FEW = 2**16  # numbers, below which building the table of cells costs more than it saves


def _place(x: Tensor, middles: Tensor) -> Tensor:
    """The number of ascending `middles` below each x: torch.bucketize in a fifth of the time.

    A cell of width 1/CELLS holds at most one middle: the cell gives the count below it, and one
    comparison decides. Where a cell holds two, or for few numbers, it calls bucketize.
    """
    if x.numel() <= FEW or middles.diff().min() <= 1 / CELLS:
        return torch.bucketize(x, middles, out_int32=True)
    starts = torch.arange(-CELLS, CELLS + 1, device=x.device) / CELLS
    below = torch.bucketize(starts, middles)
    middle = F.pad(middles, (0, 1), value=torch.inf)[below]  # the next at or after the cell's start
    cell = (x.clamp(-1, 1).add_(1)).mul_(CELLS).int().flatten()
    above = x.flatten() > middle.index_select(0, cell)
    return below.byte().index_select(0, cell).add_(above.view(torch.uint8)).view(x.shape)


def normal_levels(bits: int = 4) -> Tensor:
    """NF4 and its analogues for other `bits`: 2^(bits-1) - 1 quantiles of the normal distribution
    below 0 and one more above, divided by the largest; ascending, float32, from -1 to 1.

    The outermost probability is the mean of two: the midpoints of the last of 2^bits and of 2^bits
    - 1 equal intervals. For NF4 that is 0.9677083, as in the paper's code.
    """
    levels = 2**bits
    outermost = round(1 - (1 / (2 * levels) + 1 / (2 * (levels - 1))) / 2, 7)
    below, above = (
        torch.linspace(outermost, 0.5, count + 1, dtype=torch.float32)[:-1].double()
        for count in (levels // 2 - 1, levels // 2)
    )
    quantiles = torch.cat([-torch.special.ndtri(below), torch.special.ndtri(above)]).float()
    quantiles = torch.cat([quantiles, quantiles.new_zeros(1)]).sort().values
    return quantiles / quantiles.max()


def float4_levels() -> tuple[float, ...]:
    """FP4 as bitsandbytes orders its codes: a sign bit, then these divided by the largest of
    them."""
    magnitudes = torch.tensor([0, 0.0625, 8, 12, 4, 6, 2, 3])
    return tuple((torch.cat([magnitudes, -magnitudes]) / 12).tolist())


NF4 = Codebook("nf4", tuple(normal_levels().tolist()))
FP4 = Codebook("fp4", float4_levels())
