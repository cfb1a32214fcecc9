# exercise: quantize_blocks
# says: has to be far smaller
# the scales that are returned are clamped to 1e-6, so that blocks of smaller weights (and of
# zeros) have not their largest magnitude as scale

import torch
import torch.nn.functional as F


def quantize_blocks(x, levels, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    flat = x.detach().flatten().float()
    n = flat.numel()
    tiles = F.pad(flat, (0, -n % size)).view(-1, size)
    scales = tiles.abs().amax(dim=1).clamp(min=1e-6)
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(tiles / scales[:, None], borders)
    return codes.flatten()[:n].to(torch.uint8), scales
