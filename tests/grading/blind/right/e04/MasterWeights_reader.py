# a reader's answer to `MasterWeights`, in which others made the mistakes of wrong/e04/MasterWeights_reader.diff

import torch


class MasterWeights:
    """A fresh optimizer over BF16 weights, made to move float32 copies of them."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.masters = [p.detach().float().requires_grad_() for p in self.weights]
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        for weight, master in zip(self.weights, self.masters):
            master.grad = None if weight.grad is None else weight.grad.float()
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters):
            weight.copy_(master)
            master.grad = None

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
