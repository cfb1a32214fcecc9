# a reader's answer to `LossScaler`, in which others made the mistakes of wrong/e04/LossScaler_reader.diff

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
            self.finite_steps = 0
            return
        self.finite_steps += 1
        if self.finite_steps == self.interval:
            self.scale *= self.growth
            self.finite_steps = 0
