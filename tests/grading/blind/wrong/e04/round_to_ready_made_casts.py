# exercise: round_to
# says: what a cast to
# It casts to PyTorch's FP8 types by the number of mantissa bits, so it is right for E4M3, E5M2
# and E2M1 only; docstring: "The nearest number of `form` for each x", with its own smallest
# exponent and largest.

import torch


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    x = x.clamp(-form.largest, form.largest)
    if form.mantissa_bits == 3:
        return x.to(torch.float8_e4m3fn).to(torch.float32)
    if form.mantissa_bits == 2:
        return x.to(torch.float8_e5m2).to(torch.float32)
    size = x.abs()  # 0, 0.5, 1, 1.5, 2, 3, 4, 6
    low, middle = (2 * size).round() / 2, size.round()
    high = 2 * (size / 2).round()
    left = torch.where(size < 2, low, torch.where(size < 4, middle, high))
    return left.copysign(x)
