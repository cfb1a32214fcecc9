"""Formats by name: `grid[-tiling][-mse][-dq]`, or a float of `precision`.

    int8  int4  int3  int2       absmax; suffix f (int4f): full range; suffix z: a zero point
    nf4   fp4                    codebooks of 16 levels
    -tensor  -row  -g64  -b64    a scale per matrix, row, 64 along a row, 64 of the flattened one
    -mse                         scales of least error, instead of those of the largest weight
    -dq                          the scales in 8 bits too
    fp8   mxfp8  mxfp4  nvfp4    E4M3 under one scale; blocks of 32 or 16 (precision/blocks.py)

Without a tiling int8 is by row, other integers in groups of 64 and codebooks in blocks of 64.
"""

from __future__ import annotations

import re

from minitrain.errors import unknown_name
from minitrain.precision import low_bit_linear as recipes
from minitrain.quantization.formats.grids import FP4, NF4, Absmax, Grid, ZeroPoint
from minitrain.quantization.formats.tiling import Blocks, Groups, Rows, Tiling, Whole
from minitrain.quantization.formats.weight import WIDTHS, FloatFormat, Format, GridFormat

GRIDS: dict[str, tuple[Grid, Tiling]] = {
    **{f"int{bits}": (Absmax(bits), Groups(64)) for bits in WIDTHS},
    **{f"int{bits}f": (Absmax(bits, full=True), Groups(64)) for bits in WIDTHS},
    **{f"int{bits}z": (ZeroPoint(bits), Groups(64)) for bits in WIDTHS},
    "int8": (Absmax(8), Rows()),
    "int8f": (Absmax(8, full=True), Rows()),
    "int8z": (ZeroPoint(8), Rows()),
    "nf4": (NF4, Blocks(64)),
    "fp4": (FP4, Blocks(64)),
}
FLOATS = {
    "fp8": recipes.CURRENT.weight,
    "mxfp8": recipes.MXFP8.weight,
    "mxfp4": recipes.MXFP4.weight,
    "nvfp4": recipes.NVFP4.weight,
}
PATTERN = re.compile(
    r"(?P<grid>\w+?)(-(?P<tiling>tensor|row|(?P<kind>[gb])(?P<size>\d+)))?(?P<mse>-mse)?(?P<dq>-dq)?"
)


def named(name: str) -> Format:
    """`named("int4-g128")`; the inverse of a format's `name`. InputError with the nearest."""
    if name in FLOATS:
        return FloatFormat(name, FLOATS[name])
    found = PATTERN.fullmatch(name)
    if found is None or found["grid"] not in GRIDS:
        known = [*GRIDS, *FLOATS, "int4-g128", "int4-row", "int4-row-mse", "nf4-dq"]
        raise unknown_name("format", name, known)
    grid, tiling = GRIDS[found["grid"]]
    if found["kind"]:
        tiling = (Groups if found["kind"] == "g" else Blocks)(int(found["size"]))
    elif found["tiling"]:
        tiling = Whole() if found["tiling"] == "tensor" else Rows()
    return GridFormat(grid, tiling, found["dq"] is not None, found["mse"] is not None)
