# exercise: quantize_blocks
# says: are not those of the nearest lev
# the fractions are computed in the dtype of x: in bfloat16 they are rounded first, and the
# level is not the nearest

import torch


def quantize_blocks(x, levels, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    flat = x.detach().flatten()
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % size)).view(-1, size)
    scales = padded.abs().amax(dim=1)
    fractions = padded / torch.where(scales > 0, scales, 1)[:, None]
    borders = ((levels[1:] + levels[:-1]) / 2).to(x.dtype)
    codes = torch.bucketize(fractions, borders).to(torch.uint8)
    return codes.flatten()[: len(flat)], scales.float()
