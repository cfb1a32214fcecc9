"""Cuts a weight (F, D) into tiles (G, g) that share a scale.

    Whole      1 tile             one large number coarsens all
    Rows       F tiles of D       each output has its own; the matmul's result is scaled once
    Groups(g)  F·⌈D/g⌉ tiles      along the sum: GPTQ, AWQ; the last of a row may be smaller
    Blocks(g)  ⌈F·D/g⌉ tiles      of the flattened matrix, across the ends of rows: QLoRA

A scale of 32 bits costs 32/g bits a weight. What a tile lacks at the edge is filled with zeros,
which are not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from minitrain.errors import InputError

Shape = tuple[int, int]


class Tiling(Protocol):
    @property
    def name(self) -> str:
        """As it ends a format's name: `row`, `g64`."""

    def cut(self, matrix: Tensor) -> Tensor:
        """(F, D) -> (G, g)"""

    def join(self, tiles: Tensor, shape: Shape) -> Tensor:
        """(G, g) -> (F, D)"""

    def columns(self, shape: Shape) -> int:
        """The number of columns that share their scales: GPTQ's step through a matrix."""


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
class Groups:
    size: int

    def __post_init__(self) -> None:
        _check_size(self.size)

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


@dataclass(frozen=True)
class Blocks:
    size: int

    def __post_init__(self) -> None:
        _check_size(self.size)

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


def _filled(x: Tensor, size: int) -> Tensor:
    """Zeros behind the last dimension up to a multiple of `size`; F.pad would copy for none too."""
    missing = -x.shape[-1] % size
    return F.pad(x, (0, missing)) if missing else x


def _check_size(size: int) -> None:
    if size < 2:
        raise InputError(f"a group of {size} numbers has more scale than codes: use 16 to 256")
