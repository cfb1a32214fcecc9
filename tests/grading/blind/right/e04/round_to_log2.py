# right: the exponent by floor(log2), which errs only where both steps give the same number
import torch


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    x = torch.clamp(x, -form.largest, form.largest)
    e = x.abs().log2().floor().clamp(min=form.smallest_exponent)
    step = torch.pow(2.0, e - form.mantissa_bits)
    return torch.round(x / step) * step
