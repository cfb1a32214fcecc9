# exercise: quantize_absmax
# says: hold one that is not above 0
# A group of zeros gets codes 0 (nan_to_num), but its scale is returned as 0; the text wants it
# above 0.

import torch


def quantize_absmax(w: torch.Tensor, bits: int, group: int):
    m = 2 ** (bits - 1) - 1
    width = w.shape[1]
    tiles = torch.nn.functional.pad(w, (0, -width % group)).unflatten(1, (-1, group))
    scale = tiles.abs().amax(dim=2) / m
    codes = (tiles / scale[:, :, None]).round().nan_to_num(0)
    return codes.flatten(1)[:, :width].to(torch.int8), scale
