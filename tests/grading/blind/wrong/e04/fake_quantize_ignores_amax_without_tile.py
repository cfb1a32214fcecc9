# exercise: fake_quantize
# says: take the given amax
# with tile None the given amax is ignored and the tensor own maximum used; the docstring says
# "amax, where it is given, stands for the tiles own", and delayed scaling calls it just so.

import torch


def round_to(x, form):  # of exercise 4, right, so that this file runs alone
    x = x.clamp(-form.largest, form.largest)
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32)
    step = power.clamp(min=2.0**form.smallest_exponent) * 2.0**-form.mantissa_bits
    return (x / step).round() * step


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    R, K = x.shape
    if tile is None:  # one scale for all
        scale = x.abs().max() / form.largest
        scale = torch.where(scale == 0, 1.0, scale)
        return round_to(x / scale, form) * scale
    r, c = tile
    padded = torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))
    tiles = padded.unflatten(1, (-1, c)).unflatten(0, (-1, r))
    if amax is None:
        amax = tiles.abs().amax(dim=(1, 3))
    scale = torch.where(amax == 0, 1.0, amax / form.largest)[:, None, :, None]
    return (round_to(tiles / scale, form) * scale).flatten(2, 3).flatten(0, 1)[:R, :K]
