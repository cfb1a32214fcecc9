"""Cuts a weight (F, D) into tiles (G, g) that share a scale.

    Whole      1 tile             one large number coarsens all
    Rows       F tiles of D       each output has its own; the matmul's result is scaled once
    Groups(g)  F·⌈D/g⌉ tiles      along the sum: GPTQ, AWQ; the last of a row may be smaller
    Blocks(g)  ⌈F·D/g⌉ tiles      of the flattened matrix, across the ends of rows: QLoRA

`cut` splits a matrix into tiles and `join` restores it; `columns` is the number of columns that
share their scales, GPTQ's step; `name` is the suffix of a format's (`row`, `g64`). A 32-bit scale
costs 32/g bits a weight. Incomplete tiles at the edge are padded with zeros, which are not stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from minitrain.errors import InputError

Shape = tuple[int, int]


@dataclass(frozen=True)
class Whole:
    name = "tensor"

    def cut(self, matrix: Tensor) -> Tensor:
        return matrix.reshape(1, -1)

    def join(self, tiles: Tensor, shape: Shape) -> Tensor:
        return tiles.reshape(shape)

    def columns(self, shape: Shape) -> int:
        return shape[1]


@dataclass(frozen=True)
class Rows:
    name = "row"

    def cut(self, matrix: Tensor) -> Tensor:
        return matrix

    def join(self, tiles: Tensor, shape: Shape) -> Tensor:
        return tiles

    def columns(self, shape: Shape) -> int:
        return shape[1]


@dataclass(frozen=True)
class Sized:
    size: int

    def __post_init__(self) -> None:
        if self.size < 2:
            raise InputError(
                f"a group of {self.size} numbers has more scale than codes: use 16 to 256"
            )


class Groups(Sized):
    @property
    def name(self) -> str:
        return f"g{self.size}"

    def cut(self, matrix: Tensor) -> Tensor:
        padded = _filled(matrix, self.size)
        return rearrange(padded, "f (n g) -> (f n) g", g=self.size)

    def join(self, tiles: Tensor, shape: Shape) -> Tensor:
        return rearrange(tiles, "(f n) g -> f (n g)", f=shape[0])[:, : shape[1]]

    def columns(self, shape: Shape) -> int:
        return min(self.size, shape[1])


class Blocks(Sized):
    @property
    def name(self) -> str:
        return f"b{self.size}"

    def cut(self, matrix: Tensor) -> Tensor:
        padded = _filled(matrix.flatten(), self.size)
        return rearrange(padded, "(n g) -> n g", g=self.size)

    def join(self, tiles: Tensor, shape: Shape) -> Tensor:
        return tiles.flatten()[: shape[0] * shape[1]].view(shape)

    def columns(self, shape: Shape) -> int:
        if shape[1] % self.size:
            raise InputError(
                f"blocks of {self.size} straddle rows of {shape[1]} weights, and this method goes "
                f"column by column: use groups, g{self.size}, or a size that divides {shape[1]}"
            )
        return self.size


Tiling = Whole | Rows | Groups | Blocks


def _filled(x: Tensor, size: int) -> Tensor:
    """Pads the last dimension with zeros to a multiple of `size`; F.pad copies even with nothing to
    pad."""
    missing = -x.shape[-1] % size
    return F.pad(x, (0, missing)) if missing else x
