# exercise: fake_quantize
# says: changed its input
# With tile=None nothing is padded and so nothing copied, and the in-place division changes the
# caller's x (a layer's weight!); docstring: "x (R, K) -> what is left of it", a function of x
# that leaves x as it is.

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
    padded = x
    if tile is not None:
        padded = torch.nn.functional.pad(x, (0, -K % c, 0, -R % r))
    tiles = padded.unflatten(1, (-1, c)).unflatten(0, (-1, r))  # (R/r, r, K/c, c)
    top = tiles.abs().amax(dim=(1, 3)) if amax is None else amax
    scale = top / form.largest
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)[:, None, :, None]
    tiles /= scale
    left = nearest(tiles, form) * scale
    return left.flatten(2, 3).flatten(0, 1)[:R, :K]
