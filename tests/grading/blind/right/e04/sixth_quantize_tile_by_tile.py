# exercise: fake_quantize
# differs: no padding and no reshaping, but a loop over tiles, cut at the edge; a tile of zeros is
# left out, since it stays zero. MasterWeights makes its masters by list comprehension and copies
# with foreach.
import torch
from itertools import product


def fake_quantize(x: torch.Tensor, form, tile=None, amax=None) -> torch.Tensor:
    x, (r, c) = x.float(), tile or x.shape
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    starts = product(range(0, x.shape[0], r), range(0, x.shape[1], c))
    for top, left in starts:
        at = slice(top, top + r), slice(left, left + c)
        if amax is None:
            largest = x[at].abs().max()
        else:
            largest = amax[top // r, left // c]
        scale = largest / form.largest
        if scale > 0:
            out[at] = round_to(x[at] / scale, form) * scale
    return out


def round_to(x: torch.Tensor, form) -> torch.Tensor:
    x = torch.clip(x, -form.largest, form.largest)
    mantissa, _ = torch.frexp(x)  # from a half to one
    # x over its mantissa is a power of two, exactly; 0 has none
    power = torch.where(x == 0, 0.0, x / (2 * mantissa))
    step = power.clamp(min=2.0**form.smallest_exponent) / 2**form.mantissa_bits
    return torch.round(x / step) * step


class MasterWeights:
    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        groups = self.param_groups
        self.weights = [p for group in groups for p in group["params"]]
        self.masters = []
        self.masters += [
            torch.empty_like(p, dtype=torch.float32).copy_(p.detach())
            for p in map(torch.Tensor.detach, self.weights)
        ]
        for master in self.masters:
            master.requires_grad_(True)
        masters = iter(self.masters)
        for group in self.param_groups:
            group["params"] = [next(masters, p) for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        for weight, master in zip(self.weights, self.masters):
            grad = weight.grad
            master.grad = grad if grad is None else grad.float()
        self.optimizer.step()
        if self.weights:
            torch._foreach_copy_(self.weights, self.masters)
        for master in self.masters:
            master.grad = None

    def zero_grad(self):
        for weight in self.weights:
            weight.grad = None
