# exercise: MasterWeights
# says: Set master.grad = None
# The masters keep their float32 gradients from step to step, to use the memory again;
# docstring: "no master keeps one".

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
                master.grad = None
            elif master.grad is None:
                master.grad = weight.grad.float()
            else:
                master.grad.copy_(weight.grad)  # no new memory
        self.optimizer.step()
        for master, weight in zip(self.masters, self.weights):
            weight.copy_(master)

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
