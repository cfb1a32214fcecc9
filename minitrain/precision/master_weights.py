"""BF16 weights: why a small step vanishes, and two ways to keep it.

BF16 has 8 bits of mantissa: the next number after 1 is 1 + 2^-7. If lr · update is under half of
that, the weight rounds back to its old value, every time, and training stalls.

    bf16 alone        w16 <- nearest(w16 - step)                      2 bytes, may stall
    master weights    w32 <- w32 - step,  w16 <- nearest(w32)         2 + 4 bytes
    stochastic        w16 <- up or down, by chance, right on average  2 bytes

Rounding up with probability equal to the discarded fraction is exact on average.
Papers: Micikevicius et al. 2018 (arXiv:1710.03740); Gupta et al. 2015 (arXiv:1502.02551). Lab: e04.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.errors import InputError

CUT_BITS = 16  # of a float32's mantissa: those that BF16 lacks


def stochastic_round(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """float32 -> bfloat16, up or down with the probability that makes the mean x itself.

    A random number added to the discarded bits carries into the rest with that probability.
    """
    x = x.float()
    noise = torch.randint(
        2**CUT_BITS, x.shape, dtype=torch.int32, device=x.device, generator=generator
    )
    bits = (x.view(torch.int32) + noise) & -(2**CUT_BITS)
    return torch.where(x.isfinite(), bits.view(torch.float32), x).to(torch.bfloat16)


def nearest(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16)


class MasterWeights:
    """An optimizer over BF16 weights that updates a float32 copy of each, and rounds it back.

    Wraps a fresh torch optimizer over the BF16 parameters, whatever its rule, and gives it the
    copies. It has an optimizer's interface, and the masters are in its state. A weight in float32
    or wider is its own master; if a weight was written since the last step, such as by
    model.load_state_dict, its master restarts from it. A scheduler takes the wrapped optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        if optimizer.state:
            raise InputError(
                "the optimizer has made steps already, on the BF16 weights: give a fresh one"
            )
        self.optimizer = optimizer
        self.weights = [p for group in optimizer.param_groups for p in group["params"]]
        wide = ((p, torch.promote_types(p.dtype, torch.float32)) for p in self.weights)
        self.masters = [p.detach().to(dtype).requires_grad_() for p, dtype in wide]
        copies = iter(self.masters)
        for group in optimizer.param_groups:
            group["params"] = [next(copies) for _ in group["params"]]
        self.register_step_pre_hook = optimizer.register_step_pre_hook
        self.register_step_post_hook = optimizer.register_step_post_hook
        self.register_load_state_dict_pre_hook = optimizer.register_load_state_dict_pre_hook

    @property
    def param_groups(self) -> list[dict]:
        return self.optimizer.param_groups

    @property
    def state(self) -> dict[Tensor, dict]:
        """For each weight its rule's state, and the master."""
        pairs = zip(self.weights, self.masters)
        return {w: {**self.optimizer.state.get(m, {}), "master": m.detach()} for w, m in pairs}

    @torch.no_grad()
    def step(self) -> None:
        self._follow()
        for weight, master in zip(self.weights, self.masters):
            master.grad = None if weight.grad is None else weight.grad.to(master.dtype)
        self.optimizer.step()
        for weight, master in zip(self.weights, self.masters):
            weight.copy_(master)  # rounds to the nearest
            master.grad = None

    def _follow(self) -> None:
        """Adopts weights written by others: those that differ from their rounded masters."""
        for weight, master in zip(self.weights, self.masters):
            if weight.dtype != master.dtype:
                master.copy_(torch.where(weight == master.to(weight.dtype), master, weight))

    def zero_grad(self, set_to_none: bool = True) -> None:
        assert set_to_none, "gradients are dropped, not zeroed: call zero_grad(set_to_none=True)"
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def state_dict(self) -> dict:
        """In the optimizer's own layout, with each master in its parameter's state."""
        self._follow()
        inner = self.optimizer.state_dict()
        state = {
            index: {**inner["state"].get(index, {}), "master": master.detach()}
            for index, master in enumerate(self.masters)
        }
        return {**inner, "state": state}

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        own = {index: dict(values) for index, values in state["state"].items()}
        copies = [own.get(index, {}).pop("master", None) for index in range(len(self.masters))]
        if any(copy is None for copy in copies):
            raise InputError(
                "this state has no masters: it is of an optimizer without MasterWeights, whose own "
                "load_state_dict reads it"
            )
        held = {index: values for index, values in own.items() if values}
        self.optimizer.load_state_dict({**state, "state": held})
        for master, copy in zip(self.masters, copies):
            master.copy_(copy)
