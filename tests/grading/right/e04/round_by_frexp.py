import torch


def round_to(x, form):
    """The exponent as a number."""
    x = x.clamp(-form.largest, form.largest)
    exponent = (torch.frexp(x).exponent - 1).clamp(min=form.smallest_exponent)
    step = torch.ldexp(torch.ones_like(x), exponent - form.mantissa_bits)
    return (x / step).round() * step
