"""Local SGD and DiLoCo: H steps on one's own, then one synchronization of the parameters.

    inner   every rank: H steps of AdamW from the common θ, on its own data     θ -> θ_i
    outer   d = θ - mean(θ_i), a pseudo-gradient that points *uphill*, as a gradient does
            θ <- Nesterov(θ, d), learning rate 0.7, momentum 0.9                all ranks agree

With outer rate 1 and momentum 0 the new θ is the mean of all θ_i: federated averaging; with H = 1
and SGD inside as well, it is DDP. Inner optimizer states stay on their rank.

    whole       |------ H steps ------|· send P ·|------ H steps ------|· send P ·|
    streaming   |-- H/F --|-- H/F --|-- H/F --|      one of F fragments at a time, each every H
                     | P/F ---> |  | P/F ---> |      steps, in flight for `overlap` steps

Cost: 2(N-1)/N · 4P / H bytes a step, 1/H of DDP; streaming has peaks of 1/F of that.
Papers: Stich 2018 (arXiv:1805.09767); Douillard et al. 2023 (arXiv:2311.08105), and for streaming
2025 (arXiv:2501.18512). Lab: e02g_slow_networks. P parameters, N ranks, F fragments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minitrain.errors import InputError, check_whole
from minitrain.optimizers.sgd import SGD
from minitrain.parallel.compressed.hook import Compressor, Exact
from minitrain.parallel.ddp import Pending, broadcast_parameters, trainable
from minitrain.ranks.group import Group


@torch.no_grad()
def average_parameters(group: Group, model: nn.Module) -> None:
    """Naive local SGD, called every H steps: the mean of all ranks' parameters, one at a time."""
    for parameter in trainable(model):
        group.all_reduce(parameter.data, op="avg")


@torch.no_grad()
def outer_step(
    group: Group,
    common: Tensor,
    own: Tensor,
    velocity: Tensor,
    lr: float = 0.7,
    momentum: float = 0.9,
) -> None:
    """Naive DiLoCo, called every H steps with flat vectors (P,): all are moved in place.

    common: θ, and velocity, its momentum: equal on all ranks. own: θ_i, which becomes the new θ.
    """
    uphill = group.all_reduce(common - own, op="avg")
    velocity.mul_(momentum).add_(uphill)
    common.sub_(uphill + momentum * velocity, alpha=lr)  # Nesterov: looks a step ahead
    own.copy_(common)


@dataclass(frozen=True)
class OuterConfig:
    """Settings of `DiLoCo`: the defaults are the paper's, one fragment and no overlap.

    overlap: inner steps that a fragment is in flight for. mix: the share of the rank's own
    parameters in what it goes on with, 0 to 1; the rest is the new common ones'.
    """

    every: int = 500  # inner steps from one synchronization of a parameter to the next: H
    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    fragments: int = 1
    overlap: int = 0
    mix: float = 0.0

    def __post_init__(self) -> None:
        check_whole("every", self.every)
        check_whole("fragments", self.fragments)
        if self.every % self.fragments:
            raise InputError(
                f"every={self.every} steps are not divisible by {self.fragments} fragments: "
                f"synchronize every {self.every - self.every % self.fragments or self.fragments}"
            )
        if not 0 <= self.overlap < self.every // self.fragments:
            raise InputError(
                f"overlap={self.overlap}: a fragment must arrive before the next one leaves, after "
                f"{self.every // self.fragments} steps: give less than that"
            )
        if not 0 <= self.mix < 1:
            raise InputError(f"mix={self.mix}: a share of the rank's own parameters, below 1")


class Fragment:
    """Some of the parameters, their common values θ, and the outer optimizer that moves those."""

    def __init__(self, parameters: Sequence[nn.Parameter], config: OuterConfig) -> None:
        self.parameters = list(parameters)
        self.common = torch.cat([p.detach().flatten() for p in parameters])  # the same on all ranks
        self.outer = SGD([self.common], config.lr, config.momentum, nesterov=config.nesterov)
        self.flying: tuple[Pending, Pending] | None = None

    def own(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.parameters])

    def send(self, group: Group, compressor: Compressor, weight: float) -> None:
        """Issues the mean of d_i = θ - θ_i, weighted."""
        uphill = (self.common - self.own()) * weight
        weights = torch.tensor([weight], dtype=torch.float64, device=uphill.device)
        total = group.all_reduce(weights, async_op=True)
        self.flying = compressor.start(group, self, uphill), total

    def receive(self, ranks: int, mix: float) -> None:
        """Takes the outer step; with no rank present, all stays as it is."""
        mean, total = (work.wait() for work in self.flying)
        self.flying = None
        if total.item() > 0:
            self.common.grad = mean * (ranks / total.item())
            self.outer.step()
        mixed = torch.lerp(self.common, self.own(), mix)  # not in place: θ itself is needed again
        for p, part in zip(self.parameters, mixed.split([p.numel() for p in self.parameters])):
            p.copy_(part.view_as(p))


class DiLoCo:
    """Call `step()` after each step of the inner optimizer, on every rank.

        diloco = DiLoCo(model, group, OuterConfig(every=50))
        for batch in batches:
            loss(model, batch).backward(); inner.step(); inner.zero_grad()
            diloco.step()
        diloco.finish()

    `compressor` sends the outer gradients in fewer bits: Quantized(bits=4).
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        config: OuterConfig | None = None,
        compressor: Compressor | None = None,
    ) -> None:
        self.group, self.config = group, config or OuterConfig()
        self.compressor = compressor or Exact()
        self.steps = 0
        broadcast_parameters(group, model)
        parts = even_parts(trainable(model), self.config.fragments)
        self.fragments = [Fragment(part, self.config) for part in parts]

    @torch.no_grad()
    def step(self, weight: float = 1.0) -> None:
        """`weight`: the rank's share in the mean, such as its number of examples.

        A rank that is away has weight 0: it takes part in the collectives here, in place of being
        left out of the group, adds nothing, and goes on from the others' parameters.
        """
        self.steps += 1
        config, apart = self.config, self.config.every // self.config.fragments
        for index, fragment in enumerate(self.fragments, 1):
            if self.steps % config.every == index * apart % config.every:
                fragment.send(self.group, self.compressor, weight)
            if fragment.flying and self._flown(index) >= config.overlap:
                fragment.receive(self.group.size, config.mix)

    def _flown(self, index: int) -> int:
        """Steps since fragment `index`, counted from 1, was sent."""
        apart = self.config.every // self.config.fragments
        return (self.steps - index * apart) % self.config.every

    @torch.no_grad()
    def finish(self) -> None:
        """Receives what is in flight and, last, leaves the common parameters on every rank."""
        for fragment in self.fragments:
            if fragment.flying:
                fragment.receive(self.group.size, mix=0.0)
            for p, part in zip(
                fragment.parameters, fragment.common.split([p.numel() for p in fragment.parameters])
            ):
                p.copy_(part.view_as(p))


def even_parts(parameters: Sequence[nn.Parameter], count: int) -> list[list[nn.Parameter]]:
    """Whole parameters in order, in `count` parts of about as many numbers each, none empty."""
    if not 1 <= count <= len(parameters):
        raise InputError(
            f"{count} fragments of {len(parameters)} parameters: use 1 to {len(parameters)}"
        )
    total, seen = sum(p.numel() for p in parameters), 0
    parts: list[list[nn.Parameter]] = [[]]
    for index, parameter in enumerate(parameters):
        left, open_parts = len(parameters) - index, count - len(parts)
        full = seen * count >= total * len(parts)
        if parts[-1] and open_parts and (full or left == open_parts):
            parts.append([])
        parts[-1].append(parameter)
        seen += parameter.numel()
    return parts
