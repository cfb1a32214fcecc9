# exercise: MasterWeights
# says: the optimizer passes over it

import torch


class MasterWeights:
    def __init__(self, optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self.weights = [p for group in self.param_groups for p in group["params"]]
        self.masters = []
        self.masters = [p.detach().float().requires_grad_() for p in self.weights]
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self):
        for weight, master in zip(self.weights, self.masters):
            g = weight.grad
            master.grad = torch.zeros_like(master) if g is None else g.float()
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters):
            weight.copy_(master)
            master.grad = None

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
