import torch


class LossScaler:
    """Gradients as lists; what was found is a float64 maximum of zeros and ones."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale = scale
        self.factors = {True: growth, False: backoff}
        self.patience, self.left = interval, interval

    def unscale(self, parameters, all_reduce=lambda tensor: tensor):
        grads = [p.grad.data for p in parameters if p.grad is not None]
        if grads:  # it refuses an empty list
            torch._foreach_div_(grads, self.scale)
        bad = [not torch.isfinite(g).all() for g in grads]
        count = torch.tensor(float(sum(bad)), dtype=torch.float64)
        all_reduce(count)
        return bool(count < 0.5)

    def update(self, finite):
        self.left = self.left - 1 if finite else self.patience
        if not finite or self.left == 0:
            self.scale = self.scale * self.factors[finite]
            self.left = self.patience
