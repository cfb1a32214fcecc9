# exercise: LossScaler
# says: all gradients twice in memory
# puts a new tensor at p.grad instead of dividing the one that is there; the docstring says
# "Divides every gradient by scale, in place", so a flat buffer of which p.grad is a view stays
# scaled.

import torch


class LossScaler:
    """The scale of the loss."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        found = torch.zeros(1)
        for p in parameters:
            if p.grad is not None:
                found += (~p.grad.isfinite()).any()
                p.grad = p.grad / self.scale
        all_reduce(found)
        return found.item() == 0

    def update(self, finite: bool) -> None:
        if not finite:
            self.scale *= self.backoff
            self.finite_steps = 0
            return
        self.finite_steps += 1
        if self.finite_steps == self.interval:
            self.scale *= self.growth
            self.finite_steps = 0
