# exercise: quantize_absmax
# says: as `torch.chunk` makes them
# Cuts rows with torch.chunk, which makes even chunks: for D = 100 and group = 32 the groups are
# 25 wide and not 32, 32, 32, 4.

import torch


def quantize_absmax(w: torch.Tensor, bits: int, group: int):
    m = 2 ** (bits - 1) - 1
    count = -(-w.shape[1] // group)
    codes, scales = [], []
    for tile in w.chunk(count, dim=1):
        scale = (tile.abs().amax(dim=1, keepdim=True) / m).clamp(min=1e-30)
        codes.append((tile / scale).round().clamp(-m, m).to(torch.int8))
        scales.append(scale)
    return torch.cat(codes, dim=1), torch.cat(scales, dim=1)
