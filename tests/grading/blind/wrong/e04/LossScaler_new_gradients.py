# exercise: LossScaler
# says: all gradients twice in memory
# Each gradient is replaced by a new tensor; docstring: "Divides every gradient by `scale`, in
# place" (gradients that are views of a bucket would stay scaled there).

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
                p.grad = p.grad / self.scale
                if not p.grad.isfinite().all():
                    found += 1
        all_reduce(found)
        return found.item() == 0

    def update(self, finite: bool) -> None:
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.finite_steps == self.interval:
            self.scale *= self.growth
            self.finite_steps = 0
