import torch


def round_to(x, form):
    """Looks each number up between its neighbours, in a table of all that the format has."""
    numbers = numbers_of(form)
    size = x.abs().clamp(max=form.largest).nan_to_num(0.0).double()
    high = torch.bucketize(size, numbers).clamp(1, len(numbers) - 1)
    below, above = size - numbers[high - 1], numbers[high] - size
    is_up = (above < below) | ((above == below) & (high % 2 == 0))
    value = torch.where(is_up, numbers[high], numbers[high - 1]).float()
    return torch.where(x.isnan(), x, value.copysign(x))


def numbers_of(form):
    steps, exponent, found = 2**form.mantissa_bits, form.smallest_exponent, [0.0]
    found = [k / steps * 2.0**exponent for k in range(steps)]
    while found[-1] < form.largest:
        found += [(1 + k / steps) * 2.0**exponent for k in range(steps)]
        exponent += 1
    return torch.tensor([v for v in found if v <= form.largest], dtype=torch.float64)
