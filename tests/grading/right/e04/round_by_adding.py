import torch


def round_to(x, form):
    """Adds a number so large that float64 has no room for the bits that must go."""
    wide = x.double().clamp(-form.largest, form.largest)
    size = wide.abs().clamp(min=2.0**form.smallest_exponent)
    power = 2.0 ** torch.log2(size).floor()
    power = torch.where(power > size, power / 2, power)
    power = torch.where(2 * power <= size, 2 * power, power)
    large = 1.5 * 2.0**52 * power * 2.0**-form.mantissa_bits
    return ((wide + large) - large).float()
