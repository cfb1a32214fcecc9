# exercise: LossScaler
# says: Ask `isfinite()` of the numbers themselves
# looks at the float32 sum of squares, which overflows for large but finite gradients (1e20),
# and so reports them as not finite; the docstring says True if all of them are finite.

import torch


class LossScaler:
    """The scale of the loss."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        squares = torch.zeros(1)
        for p in parameters:
            if p.grad is not None:
                squares += p.grad.float().square().sum()
                p.grad.div_(self.scale)
        found = (~squares.isfinite()).float()
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
