# exercise: fake_quantize
# says: divide by amax / form.largest itself
# It multiplies by form.largest / amax, which is inf for a small amax (1e-37 in E4M3), so a tile
# of small numbers becomes nan and amax; "scale = amax / form.largest, however small", "Divide".

import torch


def nearest(x, form):
    """As `round_to` of exercise 4."""
    x = x.clamp(-form.largest, form.largest)
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32)
    power = power.clamp(min=2.0**form.smallest_exponent)
    step = power * 2.0**-form.mantissa_bits
    return (x / step).round() * step


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    R, K = x.shape
    r, c = tile or (R, K)
    padded = torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))
    tiles = padded.unflatten(1, (-1, c)).unflatten(0, (-1, r))  # (R/r, r, K/c, c)
    top = tiles.abs().amax(dim=(1, 3)) if amax is None else amax
    one = torch.ones_like(top)
    up = torch.where(top == 0, one, form.largest / top)[:, None, :, None]
    down = torch.where(top == 0, one, top / form.largest)[:, None, :, None]
    left = nearest(tiles * up, form) * down
    return left.flatten(2, 3).flatten(0, 1)[:R, :K]
