# exercise: fake_quantize
# says: smallest normal number
# keeps the scale from falling below the smallest normal float32, so tiles with amax below about
# 5e-36 get too large a scale ("scale = amax / form.largest, however small").

import torch


def _round(x, form):
    x = x.clamp(-form.largest, form.largest)
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32)
    step = power.clamp(min=2.0**form.smallest_exponent) * 2.0**-form.mantissa_bits
    return (x / step).round() * step


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    R, K = x.shape
    r, c = tile if tile is not None else (R, K)
    padded = torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))
    tiles = padded.unflatten(1, (-1, c)).unflatten(0, (-1, r))
    if amax is None:
        amax = tiles.abs().amax(dim=(1, 3))
    scale = torch.where(amax == 0, 1.0, amax / form.largest)
    scale = scale.clamp(min=torch.finfo(torch.float32).tiny)[:, None, :, None]
    tiles = _round(tiles / scale, form) * scale
    return tiles.flatten(2, 3).flatten(0, 1)[:R, :K]
