# right: round_to takes the exponent from frexp and builds the step by a shift of bits; fake_quantize finds the tiles' largest by max pooling with ceil_mode and spreads scales with repeat_interleave, so that no padding is needed.
import torch


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    inside = torch.clamp(x, min=-form.largest, max=form.largest)
    exponent = torch.frexp(inside).exponent - 1  # frexp counts from 1/2
    exponent = exponent.clamp(min=form.smallest_exponent, max=127)
    step = ((exponent - form.mantissa_bits + 127) << 23).view(torch.float32)
    return torch.round(inside / step) * step


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    R, K = x.shape
    r, c = (R, K) if tile is None else tile
    if amax is None:
        amax = torch.nn.functional.max_pool2d(
            x.abs()[None], kernel_size=(r, c), stride=(r, c), ceil_mode=True
        )[0]
    scale = amax / form.largest
    scale = scale.masked_fill(scale == 0, 1.0)
    scale = scale.repeat_interleave(r, dim=0)[:R]
    scale = scale.repeat_interleave(c, dim=1)[:, :K]
    return round_to(x / scale, form) * scale
