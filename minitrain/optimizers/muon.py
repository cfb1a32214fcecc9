"""Muon: the step of a matrix is its momentum with all singular values made nearly equal.

    m <- b m + (1 - b) g           u = (1 - b) g + b m, Nesterov's look ahead
    w <- w - lr decay w - lr·s NS(u)          s = sqrt(max(1, rows / columns))

A gradient has a few large directions, and a plain step hardly moves the rest. U V^T, of the SVD
U S V^T, is the steepest step of a given spectral norm. Newton-Schulz finds it by matmuls alone: an
odd polynomial p(X) = a X + b X X^T X + c (X X^T)² X acts on every singular value, 0.68 to 1.13
after five steps of the tuned one (a = 3.44, so that small ones rise fast), exactly 1 after many of
the convergent one. For the 2-D matrices inside a model; embedding, head and norms keep AdamW.

Cost: 4 bytes of state a parameter, half of AdamW's; 20·m²·n + 10·m³ FLOPs a matrix m <= n. A shard
cannot do it alone, NS(shard) is not the shard of NS(matrix): `DistributedMuon` gives each whole
matrix to one rank. Published: about twice AdamW's efficiency (Moonlight, arXiv 2502.16982). Source:
Jordan et al. 2024, kellerjordan.github.io/posts/muon. Lab: e14.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.optimizers.adamw import OneByOne

Coefficients = tuple[float, float, float]
TUNED: Coefficients = (3.4445, -4.7750, 2.0315)
CONVERGENT: Coefficients = (15 / 8, -10 / 8, 3 / 8)


def newton_schulz_step(x: Tensor, coefficients: Coefficients) -> Tensor:
    """x (m, n), best with m <= n -> (m, n): a x + b (x x^T) x + c (x x^T)² x."""
    a, b, c = coefficients
    gram = x @ x.T  # (m, m)
    return torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)


def newton_schulz(
    g: Tensor,
    steps: int = 5,
    coefficients: Coefficients = TUNED,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """g (m, n) -> (m, n) in `dtype`, or g's own, singular values near 1, vectors as in g."""
    x = g.to(dtype or g.dtype)
    x = x.T if g.shape[0] > g.shape[1] else x  # the smaller product
    x = x / x.norm().clamp(min=1e-7)  # all singular values at most 1
    for _ in range(steps):
        x = newton_schulz_step(x, coefficients)
    return x.T if g.shape[0] > g.shape[1] else x


class Muon(OneByOne):
    """For matrices, as torch.optim.Muon computes it."""

    def __init__(
        self,
        parameters,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        steps: int = 5,
    ):
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "steps": steps}
        super().__init__(parameters, defaults)

    def _check(self, group: dict) -> None:
        super()._check(group)
        for weight in group["params"]:
            if weight.ndim != 2:
                raise InputError(
                    f"Muon moves matrices, and one parameter is {tuple(weight.shape)}: give "
                    "embedding, head, norms and biases to AdamW (`muon_groups` sorts them)"
                )

    def start(self, weight: Tensor, group: dict) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(weight)}

    def move(self, weight: Tensor, grad: Tensor, group: dict, state: dict[str, Tensor]) -> None:
        apply(weight, self.direction(grad, group, state), group)

    @staticmethod
    def direction(grad: Tensor, group: dict, state: dict[str, Tensor]) -> Tensor:
        mean = state["momentum_buffer"].lerp_(grad, 1 - group["momentum"])
        look_ahead = grad.lerp(mean, group["momentum"])
        return newton_schulz(look_ahead, group["steps"], dtype=torch.bfloat16)


def apply(weight: Tensor, direction: Tensor, group: dict) -> None:
    rows, columns = weight.shape
    weight.mul_(1 - group["lr"] * group["weight_decay"])
    weight.add_(direction, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


class DistributedMuon(Muon):
    """Data-parallel: each matrix belongs to one rank, which alone keeps its momentum.

        all ranks   g of matrix 0 ─┐ average, to the owner     g of matrix 1 ─┐
        owner       momentum, NS ──┴─ broadcast the direction in bfloat16     …

    Gradients are each rank's own; the state is 4/N bytes a parameter, the work 1/N.
    """

    def __init__(self, parameters, group: Any, **settings: float):
        """`group`: `minitrain.ranks`' Group, or anything with rank, size, all_reduce, broadcast."""
        super().__init__(parameters, **settings)
        self.ranks = group
        weights = [weight for each in self.param_groups for weight in each["params"]]
        self.owner = dict(zip(weights, balance([w.shape for w in weights], group.size)))

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                grad = self.ranks.all_reduce(weight.grad.clone()) / self.ranks.size
                direction = torch.empty_like(weight, dtype=torch.bfloat16)
                if self.owner[weight] == self.ranks.rank:
                    state = self.state[weight]
                    if not state:
                        state.update(self.start(weight, group))
                    direction = self.direction(grad, group, state).contiguous()
                direction = self.ranks.broadcast(direction, root=self.owner[weight])
                apply(weight, direction, group)


def balance(shapes: Sequence[Sequence[int]], ranks: int) -> list[int]:
    """Each matrix's owner: the most work first, to the rank that has the least so far.

    Work is m·n·min(m, n), to which Newton-Schulz' FLOPs are nearly proportional.
    """
    work = [rows * columns * min(rows, columns) for rows, columns in shapes]
    load, owners = [0] * ranks, [0] * len(work)
    for index in sorted(range(len(work)), key=lambda i: -work[i]):
        owners[index] = load.index(min(load))
        load[owners[index]] += work[index]
    return owners


def muon_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(the matrices inside the blocks, everything else: embedding, head, norms, biases)."""
    outside = {
        id(p)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) or name.split(".")[-1] == "head"
        for p in module.parameters()
    }
    trained = [p for p in model.parameters() if p.requires_grad]
    inside = [p for p in trained if p.ndim == 2 and id(p) not in outside]
    chosen = {id(p) for p in inside}
    return inside, [p for p in trained if id(p) not in chosen]
