# exercise: LossScaler
# says: `interval` of them in a row are needed
# an overflow halves the scale, but the count of finite steps goes on; the text says "after
# interval finite steps in a row".

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
                p.grad /= self.scale
        all_reduce(found)
        return found.item() == 0

    def update(self, finite: bool) -> None:
        if finite:
            self.finite_steps += 1
            if self.finite_steps == self.interval:
                self.scale *= self.growth
                self.finite_steps = 0
        else:
            self.scale *= self.backoff
