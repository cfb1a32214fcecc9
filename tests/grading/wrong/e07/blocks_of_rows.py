# exercise: quantize_blocks
# says: as if blocks ended with each row

import torch


def quantize_blocks(x, levels, size):
    rows = x.detach().float()
    count = rows.shape[-1]
    tiles = torch.nn.functional.pad(rows, (0, -count % size))
    tiles = tiles.view(*rows.shape[:-1], -1, size)
    scales = tiles.abs().amax(dim=-1)
    fractions = tiles / scales.clamp(min=1e-38)[..., None]
    codes = torch.bucketize(fractions, (levels[1:] + levels[:-1]) / 2)
    codes = codes.flatten(-2)[..., :count]
    return codes.flatten().to(torch.uint8), scales.flatten()
