# exercise: quantize_blocks
# says: changed its input
# x is divided in place where it is contiguous float32 of whole blocks: the input is not left as
# it is

import torch
import torch.nn.functional as F


def quantize_blocks(x, levels, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    flat = x.detach().float().reshape(-1)
    n = flat.numel()
    rest = -n % size
    tiles = (F.pad(flat, (0, rest)) if rest else flat).view(-1, size)
    scales = tiles.abs().amax(dim=1)
    tiles /= scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    borders = (levels[1:] + levels[:-1]) / 2
    return torch.bucketize(tiles, borders).to(torch.uint8).flatten()[:n], scales
