# right: round_to lists all numbers of the form and searches between their midpoints (a tie goes to the even multiple of the gap); fake_quantize numbers the tile of each element and reduces by that index; LossScaler looks for isinf or isnan and keeps the maximum.
import torch


def numbers_of(form):
    """All numbers of the form from 0 to its largest, float64, rising."""
    m, low = form.mantissa_bits, form.smallest_exponent
    found = [k * 2.0 ** (low - m) for k in range(2**m)]  # subnormal
    e = low
    while 2.0**e <= form.largest:
        found += [k * 2.0 ** (e - m) for k in range(2**m, 2 ** (m + 1))]
        e += 1
    return [number for number in found if number <= form.largest]


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    table = torch.tensor(numbers_of(form), dtype=torch.float64, device=x.device)
    gaps = table.diff()
    middles = table[:-1] + gaps / 2
    odd = (table[:-1] / gaps) % 2 == 1  # the lower one of two is an odd multiple
    size = x.detach().double().abs().clamp(max=form.largest)
    below = torch.searchsorted(middles, size.contiguous())  # middles under |x|
    place = below.clamp(max=len(middles) - 1)
    tie_up = (size == middles[place]) & odd[place]
    nearest = table[(below + tie_up).clamp(max=len(table) - 1)].float().copysign(x)
    return torch.where(x.isnan(), x, nearest)


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    R, K = x.shape
    r, c = tile if tile is not None else (R, K)
    down = torch.arange(R, device=x.device) // r  # (R,) row of tiles
    along = torch.arange(K, device=x.device) // c  # (K,)
    rows, columns = -(-R // r), -(-K // c)
    index = down[:, None] * columns + along  # (R, K) number of the tile
    if amax is None:
        top = x.new_zeros(rows * columns)
        top = top.scatter_reduce(0, index.flatten(), x.abs().flatten(), "amax")
    else:
        top = amax.reshape(-1)
    scale = top / form.largest
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)[index]  # (R, K)
    return round_to(x / scale, form) * scale


class LossScaler:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        found = None
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            gradient /= self.scale
            wrong = (gradient.isinf() | gradient.isnan()).any().float()
            found = wrong if found is None else torch.maximum(found, wrong)
        if found is None:
            found = torch.zeros(())
        all_reduce(found)
        return not bool(found)

    def update(self, finite: bool) -> None:
        if finite:
            self.finite_steps += 1
        else:
            self.finite_steps = 0
            self.scale *= self.backoff
        if self.finite_steps >= self.interval:
            self.finite_steps = 0
            self.scale *= self.growth
