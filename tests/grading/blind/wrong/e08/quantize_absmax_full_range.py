# exercise: quantize_absmax
# says: so divide by m
# Uses the code -m - 1 too (scale = max / 2^(b-1), clamp to -2^(b-1)..2^(b-1)-1), as two's
# complement invites one to do.

import torch


def quantize_absmax(w: torch.Tensor, bits: int, group: int):
    half = 2 ** (bits - 1)
    width = w.shape[1]
    tiles = torch.nn.functional.pad(w, (0, -width % group)).unflatten(1, (-1, group))
    scale = (tiles.abs().amax(dim=2) / half).clamp(min=1e-30)
    codes = (tiles / scale[:, :, None]).round().clamp(-half, half - 1)
    return codes.flatten(1)[:, :width].to(torch.int8), scale
