# exercise: compress
# says: each block's own mean
# each block of scales has a mean of its own, and the mean of these is returned: one mean for
# all is asked for

import torch
import torch.nn.functional as F


def compress(scales: torch.Tensor, levels, size: int) -> dict[str, torch.Tensor]:
    parts = [part - part.mean() for part in scales.split(size)]
    means = torch.stack([part.mean() for part in scales.split(size)])
    left = torch.cat(parts)
    tiles = F.pad(left, (0, -len(left) % size)).view(-1, size)
    scale = tiles.abs().amax(dim=1)
    safe = torch.where(scale == 0, torch.ones_like(scale), scale)
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(tiles / safe[:, None], borders).to(torch.uint8)
    return {
        "scale_codes": codes.flatten()[: len(scales)],
        "scale_outer": scale,
        "scale_mean": means.mean(),
    }
