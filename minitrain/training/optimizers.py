"""AdamW: gradient descent, each coordinate's step divided by that coordinate's usual size.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2       (running means of g and g^2)
    w <- w - lr decay w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
Cost: 8 bytes of state and about 12 FLOPs a parameter; the step reads and writes 28 bytes for each.
Papers: Kingma & Ba 2015 (arXiv:1412.6980); Loshchilov & Hutter 2019 (arXiv:1711.05101). Lab: e01.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn


class NaiveAdamW(torch.optim.Optimizer):
    """AdamW as the formula reads, one parameter after the other, each a dozen passes over memory.

    State and `state_dict` are laid out as torch's, so that one can take over from the other.
    """

    def __init__(
        self,
        parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """Moves each parameter that has a gradient; `closure` is torch's convention, and unused."""
        assert closure is None, "NaiveAdamW takes its gradients from backward(), not from a closure"
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)

    def _move(self, weight: Tensor, grad: Tensor, group: dict) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        state["step"] += 1
        step, (beta1, beta2) = state["step"].item(), group["betas"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(beta1).add_(grad, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        # Both means start at 0 and are too small at first: dividing by 1 - beta^step corrects that.
        usual_size = (square.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])  # decoupled: not through the gradient
        weight.addcdiv_(mean, usual_size, value=-group["lr"] / (1 - beta1**step))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two groups: the matrices decay; norms, biases and embedding tables do not.

    Decay pulls a weight to 0. That regularises a matrix; it would switch a norm's gain off, and it
    shrinks the embedding of every token that a batch does not hold. A head that is tied to the
    embedding table is the same tensor, and follows the table.
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    trained = [p for p in model.parameters() if p.requires_grad]  # shared tensors come once
    decayed = [p for p in trained if p.ndim >= 2 and id(p) not in tables]
    kept = [p for p in trained if p.ndim < 2 or id(p) in tables]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def adamw(
    model: nn.Module,
    lr: float,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
) -> torch.optim.AdamW:
    """torch's fused AdamW over `parameter_groups(model)`: one pass over memory, not a dozen."""
    groups = parameter_groups(model, weight_decay)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)


def clip_by_global_norm(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scales all gradients by one factor, so that as one vector they are at most `limit` long.

    Returns the length before. One factor for all keeps the direction of the step.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = torch.stack([torch.linalg.vector_norm(g) for g in gradients])
    norm = torch.linalg.vector_norm(norms)
    torch._foreach_mul_(gradients, clip_factor(norm, limit))
    return norm


def clip_factor(norm: Tensor, limit: float) -> Tensor:
    """What shortens a vector of length `norm` to `limit`, and leaves a shorter one as it is."""
    return (limit / (norm + 1e-6)).clamp(max=1.0)
