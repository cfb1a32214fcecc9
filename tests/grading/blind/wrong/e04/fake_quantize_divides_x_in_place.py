# exercise: fake_quantize
# says: changed its input
# where the tile divides x nothing is padded, the tiles are a view of x, and "tiles /= scale"
# changes x; the docstring says x "unchanged".

import torch


def round_to(x, form):  # of exercise 4, right, so that this file runs alone
    x = x.clamp(-form.largest, form.largest)
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32)
    step = power.clamp(min=2.0**form.smallest_exponent) * 2.0**-form.mantissa_bits
    return (x / step).round() * step


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    R, K = x.shape
    r, c = tile or (R, K)
    padded = x
    if R % r or K % c:
        padded = torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))
    tiles = padded.reshape(padded.shape[0] // r, r, padded.shape[1] // c, c)
    if amax is None:
        amax = tiles.abs().amax(dim=(1, 3))
    scale = torch.where(amax == 0, 1.0, amax / form.largest)[:, None, :, None]
    tiles /= scale
    return (round_to(tiles, form) * scale).flatten(2, 3).flatten(0, 1)[:R, :K]
