# exercise: round_to
# says: clamp x to

import torch


def round_to(x, form):
    exponent = (torch.frexp(x).exponent - 1).clamp(min=form.smallest_exponent)
    step = torch.ldexp(torch.ones_like(x), exponent - form.mantissa_bits)
    return (x / step).round() * step
