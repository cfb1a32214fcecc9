# exercise: MasterWeights
# says: and the optimizer passes over it
# A weight without a gradient gives its master one of zeros, so weight decay and old moments
# still move it; docstring: "A weight without a gradient gives its master none".

import torch


class MasterWeights:
    """A fresh optimizer over BF16 weights, made to move float32 copies of them."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.masters = []  # a float32 parameter for each weight
        for weight in self.weights:
            self.masters.append(weight.detach().float().requires_grad_())
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        for master, weight in zip(self.masters, self.weights):
            if weight.grad is None:
                master.grad = torch.zeros_like(master)
            else:
                master.grad = weight.grad.float()
        self.optimizer.step()
        for master, weight in zip(self.masters, self.weights):
            weight.copy_(master)
            master.grad = None

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
