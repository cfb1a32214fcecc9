# exercise: compress
# says: is float32 of shape
# the block size is always 256, not the one that is given

import torch


def compress(scales: torch.Tensor, levels, size: int) -> dict[str, torch.Tensor]:
    mean = scales.mean()
    codes, outer = quantize_blocks(scales - mean, levels, 256)
    return {"scale_codes": codes, "scale_outer": outer, "scale_mean": mean}
