# exercise: LossScaler
# says: A sum over ranks of what is *right* stays above 0
# The flag "finite" is summed over ranks instead of "bad", and > 0 is asked: one finite rank is
# enough to take the step.

import torch


class LossScaler:
    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    @torch.no_grad()
    def unscale(self, parameters, all_reduce=lambda tensor: tensor) -> bool:
        finite = torch.ones(1)
        for p in parameters:
            if p.grad is None:
                continue
            p.grad /= self.scale
            finite = finite.to(p.grad.device)
            if not torch.isfinite(p.grad).all():
                finite.zero_()
        all_reduce(finite)
        return finite.item() > 0

    def update(self, finite: bool) -> None:
        if not finite:
            self.scale *= self.backoff
            self.finite_steps = 0
            return
        self.finite_steps += 1
        if self.finite_steps == self.interval:
            self.scale *= self.growth
            self.finite_steps = 0
