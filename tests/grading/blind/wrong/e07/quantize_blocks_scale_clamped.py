# exercise: quantize_blocks
# says: have a scale of 1e-05
# scales are clamped to at least 1e-5 against 0/0: blocks of small numbers get too large a scale
# and too few levels

import torch


def quantize_blocks(x, levels, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    flat = x.detach().float().flatten()
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % size)).view(-1, size)
    scales = padded.abs().amax(dim=1).clamp(min=1e-5)
    fractions = padded / scales[:, None]
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(fractions, borders).to(torch.uint8)
    return codes.flatten()[: len(flat)], scales
