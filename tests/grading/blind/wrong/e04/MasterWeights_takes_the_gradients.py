# exercise: MasterWeights
# says: step() has changed a weight's own gradient
# after the step the gradients of the weights are gone too; the docstring says "The weights own
# gradients stay as they are".

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
            if weight.grad is not None:
                master.grad = weight.grad.float()
                weight.grad = None  # moved to the master
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters):
            weight.copy_(master)
            master.grad = None

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
