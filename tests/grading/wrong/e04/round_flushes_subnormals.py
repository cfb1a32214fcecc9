# exercise: round_to
# says: its own numbers

import torch


def round_to(x, form):
    x = x.clamp(-form.largest, form.largest)
    exponent = (torch.frexp(x).exponent - 1).clamp(min=form.smallest_exponent)
    step = torch.ldexp(torch.ones_like(x), exponent - form.mantissa_bits)
    small = x.abs() < 2.0**form.smallest_exponent
    return torch.where(small, 0.0, (x / step).round() * step)
