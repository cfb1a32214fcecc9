# exercise: LossScaler
# says: `interval` of them in a row are needed
# A skipped step does not set the count back, so finite steps are counted in all and not in a
# row; "After `interval` finite steps in a row double it, count anew".

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
                p.grad.div_(self.scale)
                if not p.grad.isfinite().all():
                    found += 1
        all_reduce(found)
        return found.item() == 0

    def update(self, finite: bool) -> None:
        if not finite:
            self.scale *= self.backoff
            return
        self.finite_steps += 1
        if self.finite_steps == self.interval:
            self.scale *= self.growth
            self.finite_steps = 0
