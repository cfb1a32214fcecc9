import torch


def fake_quantize(x, form, tile=None, amax=None):
    """Scales at their full size; largest magnitudes by pooling, which pads by itself."""
    height, width = x.shape if tile is None else tile
    if amax is None:
        pooled = (
            torch.nn.functional.max_pool2d(x.abs()[None], (height, width), ceil_mode=True)
            if tile
            else x.abs().max().view(1, 1, 1)
        )
        amax = pooled[0]
    scale = amax / form.largest
    scale = torch.where(amax > 0, scale, torch.ones_like(scale))
    scale = scale.repeat_interleave(height, 0).repeat_interleave(width, 1)
    scale = scale[: x.shape[0], : x.shape[1]]
    return round_to(x / scale, form) * scale
