"""AdamW: gradient descent with each coordinate's step divided by that coordinate's usual size.

    m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2       (running means of g and g^2)
    w <- w - lr decay w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
Cost: 8 bytes of state and about 12 FLOPs a parameter; the step reads and writes 28 bytes for each.
Papers: Kingma & Ba 2015 (arXiv:1412.6980); Loshchilov & Hutter 2019 (arXiv:1711.05101). Lab: e01.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.optimizers.groups import parameter_groups, with_gradients

RANGES = {  # of settings: lower bound, and exclusive upper bound
    **dict.fromkeys(("lr", "eps", "weight_decay", "momentum"), (0, math.inf)),
    **dict.fromkeys(("smallest_weight", "clip"), (0, math.inf)),
    "betas": (0, 1),
    "beta2_decay": (-math.inf, 0),
}
OF_OTHER_RULES = ("amsgrad", "maximize", "dampening")  # refused if on
CACHED = 2**16  # numbers per piece: with g, m, v and a temporary, 1.3 MB of float32


class OneByOne(torch.optim.Optimizer, ABC):
    """A rule applied to one parameter after another: `start` makes its state, `move` its step."""

    takes_complex = False

    def add_param_group(self, param_group: dict) -> None:
        """As torch's; raises InputError for invalid settings, and for complex weights."""
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1])
        except InputError:
            del self.param_groups[-1]
            raise

    def _check(self, group: dict) -> None:
        name = type(self).__name__
        for setting in RANGES.keys() & group.keys():
            (least, most), value = RANGES[setting], group[setting]
            values = tuple(value) if setting == "betas" else (value,)
            if len(values) != 1 + (setting == "betas") or not all(
                least <= number < most for number in values
            ):
                raise InputError(
                    f"{name} got {setting}={value}: give {least} or more, and less than {most}"
                )
        for setting in OF_OTHER_RULES:
            if group.get(setting) and setting not in self.defaults:
                raise InputError(f"{name} has no {setting}={group[setting]}: use torch's optimizer")
        if not self.takes_complex and any(p.is_complex() for p in group["params"]):
            raise InputError(
                f"{name} moves real weights, and one is complex: give torch.view_as_real(weight), "
                "or use torch.optim"
            )

    @abstractmethod
    def start(self, weight: Tensor, group: dict) -> dict[str, Tensor]:
        """The state of a weight before its first step."""

    @abstractmethod
    def move(self, weight: Tensor, grad: Tensor, group: dict, state: dict[str, Tensor]) -> None:
        """Updates the weight and its state in place."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """Updates each parameter that has a gradient; `closure` is torch's convention, unused."""
        assert closure is None, "gradients come from backward() here, not from a closure"
        for group in self.param_groups:
            for weight in with_gradients(group["params"]):
                state = self.state[weight]
                if not state:
                    state.update(self.start(weight, group))
                self.move(weight, weight.grad, group, state)

    def load_state_dict(self, state_dict: dict) -> None:
        """As torch's, which casts states to the weight's dtype: this restores the saved dtype."""
        for group in state_dict["param_groups"]:
            self._check({**group, "params": ()})
            if missing := sorted(self.defaults.keys() - group.keys()):
                raise InputError(
                    f"the saved optimizer has no {missing[0]}, so it is no {type(self).__name__}: "
                    "load it into one of the kind that saved it"
                )
        before = self.state, self.param_groups
        super().load_state_dict(state_dict)
        weights = [(weight, group) for group in self.param_groups for weight in group["params"]]
        try:
            for index, saved in state_dict["state"].items():
                self._check_state(*weights[index], saved)
        except InputError:
            self.state, self.param_groups = before
            raise
        for index, saved in state_dict["state"].items():
            own = self.state[weights[index][0]]
            for name, value in saved.items():
                if value is None:  # SGD before its first momentum
                    del own[name]
                elif isinstance(value, Tensor):
                    own[name] = value.to(own[name].device, copy=True)
                else:  # step counts of older torch
                    own[name] = torch.tensor(float(value))

    def _check_state(self, weight: Tensor, group: dict, saved: dict) -> None:
        """Raises InputError for another rule's state, or a weight of another shape."""
        name, wanted = type(self).__name__, self.start(weight, group)
        other = sorted(n for n in wanted.keys() ^ saved.keys() if saved.get(n, "") is not None)
        if saved and other:
            has = "has" if other[0] in saved else "lacks"
            raise InputError(
                f"the saved state {has} {other[0]}, unlike that of {name}: load it into an "
                "optimizer of the kind that saved it"
            )
        for part, value in saved.items():
            if isinstance(value, Tensor) and value.shape != wanted[part].shape:
                raise InputError(
                    f"the saved {part} is {tuple(value.shape)}, and {name} needs "
                    f"{tuple(wanted[part].shape)} for a weight {tuple(weight.shape)}: give the "
                    "parameters in the order in which they were when it was saved"
                )


class NaiveAdamW(OneByOne):
    """AdamW as the formula reads, one parameter after another, a dozen passes over memory each.

    State and `state_dict` have torch's layout, so that each can resume from the other.
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

    def start(self, weight: Tensor, group: dict) -> dict[str, Tensor]:
        means = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": torch.tensor(0.0), **means}

    def move(self, weight: Tensor, grad: Tensor, group: dict, state: dict[str, Tensor]) -> None:
        state["step"] += 1
        step, (beta1, beta2) = state["step"].item(), group["betas"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(beta1).add_(grad, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        self.descend(weight, mean, square, step, group)

    def descend(
        self, weight: Tensor, mean: Tensor, square: Tensor, step: float, group: dict
    ) -> None:
        """Both moments start at 0 and are too small at first: dividing by 1 - beta^step corrects
        that. The decay is decoupled: it does not go through the gradient."""
        beta1, beta2 = group["betas"]
        usual_size = (square.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(mean, usual_size, value=-group["lr"] / (1 - beta1**step))


class AdamW(NaiveAdamW):
    """The same for many tensors at a time, in cache-sized pieces.

    On a GPU a foreach operation is one kernel for all tensors, where the naive step launches a
    dozen for each. On a CPU the passes are the cost: tensors are cut into pieces that stay in cache
    from the first pass to the last, so memory is read and written once.
    """

    @torch.no_grad()
    def step(self, closure=None) -> None:
        assert closure is None, "gradients come from backward() here, not from a closure"
        for group in self.param_groups:
            weights = with_gradients(group["params"])
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight].update(self.start(weight, group))
                self.state[weight]["step"] += 1
            for alike in self._same_step(weights):
                step = self.state[alike[0]]["step"].item()
                for pieces in in_cache([self._tensors(weight) for weight in alike]):
                    move_together(*pieces, group, step)

    def _same_step(self, weights: list[Tensor]) -> list[list[Tensor]]:
        """Groups weights by step: one unused in some steps lags in its bias correction."""
        counts = [self.state[weight]["step"].item() for weight in weights]
        return [[w for w, n in zip(weights, counts) if n == count] for count in sorted({*counts})]

    def _tensors(self, weight: Tensor) -> tuple[Tensor, ...]:
        state = self.state[weight]
        return weight, weight.grad, state["exp_avg"], state["exp_avg_sq"]


def move_together(
    weights: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    group: dict,
    step: float,
) -> None:
    """AdamW's formula; v's bias correction is moved out of the root, which saves a pass."""
    lr, (beta1, beta2) = float(group["lr"]), group["betas"]
    correction = math.sqrt(1 - beta2**step)
    torch._foreach_lerp_(means, grads, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
    sizes = torch._foreach_sqrt(squares)
    torch._foreach_add_(sizes, group["eps"] * correction)
    torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
    torch._foreach_addcdiv_(weights, means, sizes, -lr * correction / (1 - beta1**step))


def in_cache(tensors: list[tuple[Tensor, ...]]) -> Iterator[tuple[list[Tensor], ...]]:
    """(w, g, m, v) of each parameter -> lists of pieces, a few to process at a time.

    The pieces are views, so writes go to the tensors. On a GPU all come at once.
    """
    batch, room = [], CACHED
    for whole in tensors:
        if whole[0].device.type != "cpu" or not all(t.is_contiguous() for t in whole):
            batch.append(whole)
            continue
        for piece in zip(*(t.view(-1).split(CACHED) for t in whole)):
            if batch and piece[0].numel() > room:
                yield tuple(map(list, zip(*batch)))
                batch, room = [], CACHED
            batch.append(piece)
            room -= piece[0].numel()
    if batch:
        yield tuple(map(list, zip(*batch)))


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes that the optimizer holds between steps, without the step counter."""
    tensors = [t for state in optimizer.state.values() for t in state.values()]
    return sum(t.untyped_storage().nbytes() for t in tensors if t.ndim > 0)


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
