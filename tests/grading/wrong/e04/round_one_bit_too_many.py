# exercise: round_to
# says: half as wide

import torch


def round_to(x, form):
    x = x.clamp(-form.largest, form.largest)
    exponent = (torch.frexp(x).exponent - 1).clamp(min=form.smallest_exponent)
    step = torch.ldexp(torch.ones_like(x), exponent - form.mantissa_bits - 1)
    return (x / step).round() * step
