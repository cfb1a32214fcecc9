"""FP16: its exponent range is small, so the loss is scaled up until gradients are representable.

FP16 has nothing below 6e-8, where many gradients are, and nothing above 65504. Scaling the loss by
S scales every gradient by S; before use they are divided by S again. S adapts:

    gradient has an inf or a nan   skip this step, S <- S / 2
    2000 steps without one         S <- 2 S

A skipped step changes nothing: the optimizer's count, its state and the schedule stay as they were.
All ranks must skip together, so they combine their findings. Cost: one pass over the gradients, and
a message of 4 bytes. Paper: Micikevicius et al. 2018 (arXiv:1710.03740). Lab: e04.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.model.swap import swap_linears
from minitrain.optimizers.groups import with_gradients


@dataclass
class LossScaler:
    """The scale S, and the number of finite steps in a row since it last changed."""

    scale: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000  # finite steps after which S grows
    finite_steps: int = 0

    def __post_init__(self) -> None:
        if not (
            0 < self.scale < math.inf
            and self.growth > 1
            and 0 < self.backoff < 1
            and self.interval > 0
        ):
            raise InputError(
                f"a loss scaler got {self}: it needs scale > 0, growth > 1, 0 < backoff < 1 and "
                "interval > 0, such as 65536, 2, 0.5 and 2000"
            )

    @torch.no_grad()
    def unscale(
        self,
        parameters: Iterable[nn.Parameter],
        all_reduce: Callable[[Tensor], object] = lambda tensor: tensor,
    ) -> bool:
        """Divides every gradient by S, before clipping; True if all are finite on all ranks.

        `all_reduce` sums over ranks, in place, since an inf may be on one rank only.
        """
        parameters = list(parameters)
        found = torch.zeros((), device=parameters[0].device if parameters else None)
        for parameter in with_gradients(parameters):
            parameter.grad.mul_(1.0 / self.scale)
            found += (~parameter.grad.isfinite()).any()  # a sum of finite ones may overflow
        all_reduce(found)
        return found.item() == 0

    def update(self, finite: bool) -> None:
        """Adapts the scale after each step, taken or skipped."""
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.finite_steps == self.interval:
            self.scale, self.finite_steps = self.scale * self.growth, 0

    def state_dict(self) -> dict[str, float]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, float]) -> None:
        if state.keys() != self.state_dict().keys():
            raise InputError(
                f"a loss scaler's state has {', '.join(self.state_dict())}, and this one has "
                f"{', '.join(state) or 'nothing'}: give what state_dict() gave"
            )
        for name, value in asdict(LossScaler(**state)).items():
            setattr(self, name, value)


# ---- FP16 emulated on hardware without it: its numbers, not its speed ----


class _Rounded(torch.autograd.Function):
    """x rounded to `dtype`, and in backward its gradient too; the tensors stay float32."""

    @staticmethod
    def forward(ctx, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype).to(gradient.dtype), None


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds x, and its gradient, through `dtype`: overflow becomes inf, underflow 0."""
    return _Rounded.apply(x, dtype)


class EmulatedLinear(nn.Linear):
    """A linear layer as a `dtype` matmul computes it, emulated: saves neither memory nor time.

    Operands, result and all their gradients are rounded to `dtype`; products are added in float32,
    as the matrix units of GPUs do. On CPUs a true float16 matmul is 100 times slower than this.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.dtype = linear.weight, linear.bias, dtype

    def forward(self, x: Tensor) -> Tensor:
        x, weight = rounded(x, self.dtype), rounded(self.weight, self.dtype)
        return rounded(F.linear(x, weight, self.bias), self.dtype)


def emulate(model: nn.Module, dtype: torch.dtype = torch.float16) -> nn.Module:
    """Replaces every linear layer of `model`, in place; the weights stay the same tensors."""
    swap_linears(model, lambda linear: EmulatedLinear(linear, dtype))
    return model
