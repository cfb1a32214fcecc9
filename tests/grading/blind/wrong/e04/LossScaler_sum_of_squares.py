# exercise: LossScaler
# says: Ask `isfinite()` of the numbers themselves
# It looks at the sum of squares, which overflows for large but finite gradients (above 1.8e19
# in float32), so a good step is skipped; docstring: "True if all of them, on all ranks, are
# finite".

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
                if not p.grad.square().sum().isfinite():
                    found += 1
                p.grad.div_(self.scale)
        all_reduce(found)
        return found.item() == 0

    def update(self, finite: bool) -> None:
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.finite_steps == self.interval:
            self.scale *= self.growth
            self.finite_steps = 0
