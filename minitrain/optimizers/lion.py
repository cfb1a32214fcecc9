"""Lion: every coordinate moves by plus or minus the learning rate; only the sign is computed.

    w <- w - lr (sign(b1 m + (1 - b1) g) + decay w)        m <- b2 m + (1 - b2) g

Found by program search. One moment instead of Adam's two; use a rate 3 to 10 times smaller than
Adam's and a decay larger by the same factor, since each step is as long as Adam's longest.
Cost: 4 bytes of state a parameter. Paper: Chen et al. 2023 (arXiv:2302.06675).
"""

from __future__ import annotations

from torch import Tensor

from minitrain.optimizers.adamw import OneByOne


class Lion(OneByOne):
    """Lion: the sign of an interpolated momentum; where it is exactly 0, the weight only decays."""

    def __init__(
        self,
        parameters,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def start(self, weight: Tensor, group: dict) -> dict:
        return {"exp_avg": weight.new_zeros(weight.shape)}

    def move(self, weight: Tensor, grad: Tensor, group: dict, state: dict) -> None:
        mean, (beta1, beta2), lr = state["exp_avg"], group["betas"], group["lr"]
        both = mean.lerp(grad, 1 - beta1)
        direction = both.sign().where(~both.isnan(), both)  # torch's sign of NaN is 0, hiding it
        weight.mul_(1 - lr * group["weight_decay"]).add_(direction, alpha=-lr)
        mean.lerp_(grad, 1 - beta2)  # after the step, in which the newest gradient weighs more
