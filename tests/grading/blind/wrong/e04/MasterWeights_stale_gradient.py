# exercise: MasterWeights
# says: where the weight has none the master's is None
# A master whose weight has no gradient this time keeps the gradient of the step before, and is
# moved by it again.

import torch


class MasterWeights:
    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.masters = []
        for w in self.weights:
            self.masters.append(torch.nn.Parameter(w.detach().clone().float()))
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        for weight, master in zip(self.weights, self.masters):
            if weight.grad is not None:
                master.grad = weight.grad.float()
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters):
            weight.copy_(master)

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
