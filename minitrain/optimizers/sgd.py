"""Stochastic gradient descent with momentum: like a ball that rolls downhill and keeps its speed.

    v <- momentum v + g + decay w        w <- w - lr v          (Nesterov: w - lr (momentum v + g))

In a direction whose sign persists, steps grow to 1 / (1 - momentum) times their size; where it
flips, they cancel. One rate for all coordinates, while Adam has one for each.
Cost: 4 bytes of state a parameter, none without momentum. Paper: Sutskever et al. 2013.
"""

from __future__ import annotations

from torch import Tensor

from minitrain.optimizers.adamw import OneByOne


class SGD(OneByOne):
    """As in torch: the decay is added to the gradient, and so goes through the momentum."""

    takes_complex = True  # its steps are sums

    def __init__(
        self,
        parameters,
        lr: float = 1e-2,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, {**defaults, "nesterov": nesterov})

    def start(self, weight: Tensor, group: dict) -> dict:
        return {"momentum_buffer": weight.new_zeros(weight.shape)} if group["momentum"] else {}

    def move(self, weight: Tensor, grad: Tensor, group: dict, state: dict) -> None:
        grad = grad.add(weight, alpha=group["weight_decay"])
        if momentum := group["momentum"]:
            velocity = state["momentum_buffer"].mul_(momentum).add_(grad)
            grad = grad.add_(velocity, alpha=momentum) if group["nesterov"] else velocity
        weight.add_(grad, alpha=-group["lr"])
