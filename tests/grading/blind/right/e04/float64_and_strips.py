# right: rounding in float64, one strip of columns after the other without padding, and a message that turns nan when something is not finite
import torch


class LossScaler:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        zero = torch.zeros(())
        for p in parameters:
            gradient = p.grad
            if gradient is not None:
                zero += (gradient * 0).sum()  # 0, but nan of an inf or a nan
                gradient /= self.scale
        all_reduce(zero)
        return bool(zero == 0)

    def update(self, finite: bool) -> None:
        if not finite:
            self.scale, self.finite_steps = self.scale * self.backoff, 0
        elif self.finite_steps + 1 < self.interval:
            self.finite_steps += 1
        else:
            self.scale, self.finite_steps = self.scale * self.growth, 0


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    y = x.double().clamp(-form.largest, form.largest)
    exponent = torch.frexp(y).exponent.long() - 1
    exponent = exponent.clamp(min=form.smallest_exponent) - form.mantissa_bits
    step = ((exponent + 1023) << 52).view(torch.float64)
    return ((y / step).round() * step).float()


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    R, K = x.shape
    r, c = tile or (R, K)
    tile_of_row = torch.arange(R, device=x.device) // r
    strips = []
    for column, strip in enumerate(x.split(c, dim=1)):
        if amax is None:
            most = x.new_zeros(-(-R // r))
            most = most.scatter_reduce(0, tile_of_row, strip.abs().amax(dim=1), "amax")
        else:
            most = amax[:, column]
        scale = most / form.largest
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        scale = scale[tile_of_row].unsqueeze(1)
        strips.append(round_to(strip / scale, form) * scale)
    return torch.cat(strips, dim=1)
