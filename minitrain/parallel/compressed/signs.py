"""One bit a number: signSGD with majority vote, and 1-bit Adam.

    vote          every rank sends the signs of its gradient; the step is the sign of their sum
    1-bit Adam    Adam for T steps; then its second moment v is frozen, which makes the step linear
                  in the momentum m, and m travels in 1 bit with error feedback

Adam itself cannot be compressed so: the error would enter v squared, where no feedback reaches it.
Cost: 2(N-1)/N · P/8 bytes a step, 1/32 of float32's all-reduce (1-bit Adam: and a scale a block).
Papers: Bernstein et al. 2018 (arXiv:1802.04434, 1810.05291); Tang et al. 2021 (arXiv:2102.02888).
Lab: e02g_slow_networks. P parameters, N ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minitrain.errors import InputError
from minitrain.parallel.compressed.bits import packed, unpacked
from minitrain.parallel.compressed.hook import Compressor, Then
from minitrain.parallel.compressed.quantized import Quantized
from minitrain.parallel.ddp import Pending
from minitrain.ranks.group import Group


def majority_naive(group: Group, vector: Tensor) -> Tensor:
    """The vote in float32: right, and 32 times as many bytes as there are votes."""
    votes = torch.where(vector >= 0, 1.0, -1.0)
    total = group.all_reduce(votes)
    return torch.where(total >= 0, 1.0, -1.0).to(vector.dtype)


class MajorityVote(Compressor):
    """±1 for every number, as most ranks have it. One bit has no zero: 0, and a tie, are +1.

    The length of the gradient is gone, so the learning rate is the length of each coordinate's
    step, as in Adam.
    """

    def start(self, group: Group, key: Hashable, vector: Tensor) -> Pending:
        short = -vector.numel() % (8 * group.size)
        votes = F.pad(vector >= 0, (0, short)).int().view(group.size, -1)
        ballots = packed(votes, bits=1)
        work = group.all_to_all(torch.empty_like(ballots), ballots, async_op=True)

        def finish() -> Tensor:
            ayes = unpacked(work.wait(), bits=1).sum(dim=0, keepdim=True)  # (1, n)
            verdict = packed((2 * ayes >= group.size).int(), bits=1)
            everyone = group.all_gather(ballots.new_empty(ballots.shape), verdict)
            signs = 2 * unpacked(everyone, bits=1) - 1
            return signs.flatten()[: vector.numel()].to(vector.dtype)

        return Then(finish)


class OneBitAdam(torch.optim.Optimizer):
    """Adam on all ranks' mean gradient, given each rank's *own*: it communicates itself, no DDP.

    `freeze` steps are Adam's, with a gradient in full; after them v stays as it is. A coordinate
    that has had no gradient by then (v = 0) is not moved: m / (sqrt(0) + eps) would explode with
    the first compression error.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: Group,
        lr: float = 1e-3,
        freeze: int = 100,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        block: int = 256,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})
        if freeze < 1:
            raise InputError(f"freeze={freeze}: v needs a step of plain Adam at least, give 1")
        self.group, self.freeze, self.steps = group, freeze, 0
        self.compressor = Quantized(bits=1, block=block, feedback=True)

    @torch.no_grad()
    def step(self, closure=None) -> None:
        assert closure is None, "gradients come from backward() here, not from a closure"
        self.steps += 1
        for index, settings in enumerate(self.param_groups):
            self._step(index, settings)

    def _step(self, index: int, settings: dict) -> None:
        parameters, (beta1, beta2) = settings["params"], settings["betas"]
        state = self.state[parameters[0]]  # one flat vector for all of them
        gradient = torch.cat([flat_gradient(p) for p in parameters])
        if not state:
            state.update(mean=torch.zeros_like(gradient), square=torch.zeros_like(gradient))
        mean, square = state["mean"], state["square"]
        if self.steps <= self.freeze:
            self.group.all_reduce(gradient, op="avg")
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
        if self.steps > self.freeze:
            mean.copy_(self.compressor.start(self.group, index, mean).wait())
            mean.mul_(square > 0)
        size = (square / (1 - beta2 ** min(self.steps, self.freeze))).sqrt_().add_(settings["eps"])
        update = mean / (1 - beta1**self.steps) / size
        for p, part in zip(parameters, update.split([p.numel() for p in parameters])):
            p.add_(part.view_as(p), alpha=-settings["lr"])


def flat_gradient(parameter: nn.Parameter) -> Tensor:
    """(numel,); zeros if this rank did not use the parameter."""
    gradient = parameter.grad
    return torch.zeros_like(parameter).flatten() if gradient is None else gradient.flatten()
