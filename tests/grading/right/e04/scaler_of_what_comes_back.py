import torch


class LossScaler:
    """Takes what all_reduce returns; counts down; divides by a product."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.growth, self.backoff = scale, growth, backoff
        self.interval, self.finite_steps = interval, 0

    def unscale(self, parameters, all_reduce=lambda tensor: tensor):
        wrong = torch.zeros(1, dtype=torch.int64)
        for p in list(parameters):
            if p.grad is not None:
                p.grad.mul_(1 / self.scale)
                wrong += int((p.grad.isnan() | p.grad.isinf()).sum())
        return int(all_reduce(wrong)) == 0

    def update(self, finite):
        if not finite:
            self.scale, self.finite_steps = self.scale * self.backoff, 0
            return
        self.finite_steps += 1
        if self.finite_steps % self.interval == 0:
            self.scale *= self.growth
