# exercise: LossScaler
# says: add up what is wrong

import torch


class LossScaler:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor):
        fine = torch.ones(())
        for p in parameters:
            if p.grad is not None:
                p.grad /= self.scale
                fine *= p.grad.isfinite().all()
        all_reduce(fine)
        return fine.item() > 0

    def update(self, finite):
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.finite_steps == self.interval:
            self.scale, self.finite_steps = self.scale * self.growth, 0
