# exercise: LossScaler
# says: Ask `isfinite()` of the numbers themselves
# looks at the sum of each gradient, which overflows where every element is finite (float16
# soon, float32 near its end) ("True if all of them, on all ranks, are finite").

import torch


class LossScaler:
    """The scale of the loss."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        found = torch.zeros(())
        for p in parameters:
            if p.grad is not None:
                # one inf or nan makes the sum inf or nan
                found += float(not p.grad.sum().isfinite())
                p.grad.div_(self.scale)
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
