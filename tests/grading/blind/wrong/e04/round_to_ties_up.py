# exercise: round_to
# says: ties go up
# Ties always go up (floor of x / step + 1/2); docstring: "x / step to a whole number, ties to
# even (as `torch.round` does)".

import torch


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    x = x.clamp(-form.largest, form.largest)
    power = (x.view(torch.int32) & 0x7F800000).view(torch.float32)
    power = power.clamp(min=2.0**form.smallest_exponent)
    step = power * 2.0**-form.mantissa_bits
    whole = x / step
    down = whole.floor()
    return torch.where(whole - down >= 0.5, down + 1, down) * step
