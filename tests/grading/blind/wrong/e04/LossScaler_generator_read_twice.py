# exercise: LossScaler
# says: (`parameters` can be gone through once
# It walks over `parameters` twice; `model.parameters()`, which the notebook passes, is empty
# the second time, so inf and nan are never seen: "True if all of them, on all ranks, are
# finite".

import torch


class LossScaler:
    """The scale of the loss."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        for p in parameters:
            if p.grad is not None:
                p.grad.div_(self.scale)
        fine = all(p.grad.isfinite().all() for p in parameters if p.grad is not None)
        found = torch.tensor(0.0 if fine else 1.0)
        all_reduce(found)
        return found.item() == 0

    def update(self, finite: bool) -> None:
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.finite_steps == self.interval:
            self.scale *= self.growth
            self.finite_steps = 0
