# exercise: LossScaler
# differs: a list of the gradients first, torch._foreach_div_, the flags stacked and summed; the
# count goes round by a remainder
import torch


class LossScaler:
    """The scale of the loss."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        gradients = [p.grad for p in parameters if p.grad is not None]
        bad = torch.zeros(1)
        if gradients:
            flags = [1.0 - g.isfinite().all().float() for g in gradients]
            bad = torch.stack(flags).amax().reshape(1)
            torch._foreach_div_(gradients, self.scale)
        all_reduce(bad)
        return not bool(bad > 0)

    def update(self, finite: bool) -> None:
        self.finite_steps = (self.finite_steps + 1) % self.interval if finite else 0
        if not finite:
            self.scale = self.scale * self.backoff
        elif self.finite_steps == 0:
            self.scale = self.scale * self.growth
