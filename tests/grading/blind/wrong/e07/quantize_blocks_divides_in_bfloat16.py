# exercise: quantize_blocks
# says: Its fractions are those of x in float32
# the fractions are computed in x's own dtype, so bfloat16 rounds them over a border: not the
# nearest level

import torch
import torch.nn.functional as F


def quantize_blocks(x, levels, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    flat = x.detach().reshape(-1)
    n = flat.numel()
    tiles = F.pad(flat, (0, -n % size)).view(-1, size)
    scales = tiles.abs().amax(dim=1)
    fractions = tiles / scales.clamp(min=torch.finfo(scales.dtype).tiny)[:, None]
    borders = ((levels[1:] + levels[:-1]) / 2).to(fractions.dtype)
    codes = torch.bucketize(fractions, borders).to(torch.uint8)
    return codes.flatten()[:n], scales.float()
