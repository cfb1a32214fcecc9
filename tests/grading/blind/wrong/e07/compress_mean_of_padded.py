# exercise: compress
# says: the mean with the zeros of the padding
# the mean is taken after padding with zeros to whole blocks: too small when the last block is
# short

import torch
import torch.nn.functional as F


def compress(scales: torch.Tensor, levels, size: int) -> dict[str, torch.Tensor]:
    tiles = F.pad(scales, (0, -len(scales) % size)).view(-1, size)
    mean = tiles.mean()
    tiles = F.pad(scales - mean, (0, -len(scales) % size)).view(-1, size)
    scale = tiles.abs().amax(dim=1)
    safe = torch.where(scale == 0, torch.ones_like(scale), scale)
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(tiles / safe[:, None], borders).to(torch.uint8)
    return {
        "scale_codes": codes.flatten()[: len(scales)],
        "scale_outer": scale,
        "scale_mean": mean,
    }
