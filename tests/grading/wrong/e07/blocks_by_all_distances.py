# exercise: quantize_blocks
# says: the distances to all levels are not needed

import torch


def quantize_blocks(x, levels, size):
    flat = x.detach().float().flatten()
    tiles = torch.nn.functional.pad(flat, (0, -len(flat) % size)).view(-1, size)
    scales = tiles.abs().amax(dim=1)
    fractions = tiles / scales.clamp(min=1e-38)[:, None]
    codes = (fractions[..., None] - levels).abs().argmin(dim=-1)
    return codes.to(torch.uint8).flatten()[: len(flat)], scales
