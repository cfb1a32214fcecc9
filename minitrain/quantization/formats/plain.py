"""QLoRA's weight as functions of tensors, step by step: what lab e07 builds.

    codes, scales = quantize_blocks(weight, normal_levels(4), 64)   the nearest of 16 levels
    pack_pairs(codes)                                               two codes a byte
    compress(scales, dynamic_map(signed=True), 256)                 the scales in 8 bits too

4 + 8/64 + 32/(64·256) = 4.127 bits a weight. `formats/weight.py` has the same as one object, for
every format; here each step takes its levels and its block size.
Paper: Dettmers et al. 2023, QLoRA (arXiv:2305.14314), section 3.
Shapes: n numbers  k levels  G = ⌈n/size⌉ blocks.
"""

from __future__ import annotations

from torch import Tensor

from minitrain.quantization.formats.grids import Codebook
from minitrain.quantization.formats.packing import pack
from minitrain.quantization.formats.tiling import Blocks


def quantize_blocks(x: Tensor, levels: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """x, of any shape -> codes (n,) uint8 and scales (G,) float32.

    `levels` (k,) ascend from -1 to 1, k <= 256. x, flattened, is cut into blocks of `size`; a
    block's scale is its largest magnitude, a number's code the level nearest to it over the scale.
    """
    book = Codebook("levels", tuple(levels.tolist()))
    tiles = Blocks(size).cut(x.detach().float())
    params = book.fit(tiles)
    return book.encode(tiles, params).flatten()[: x.numel()].clone(), params["scale"].flatten()


def pack_pairs(codes: Tensor) -> Tensor:
    """Codes under 16, of any shape -> bytes (⌈n/2⌉,), the first of two in the high half."""
    return pack(codes, 4)


def compress(scales: Tensor, levels: Tensor, size: int) -> dict[str, Tensor]:
    """scales (G,), none below 0 -> `scale_codes` (G,), `scale_outer` (⌈G/size⌉,), `scale_mean` ().

    The mean is taken out first: scales are all positive, and half of the levels are not.
    """
    mean = scales.mean()
    codes, outer = quantize_blocks(scales - mean, levels, size)
    return {"scale_codes": codes, "scale_outer": outer, "scale_mean": mean}
