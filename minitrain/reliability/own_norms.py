"""Each rank's own gradient norm: after the average all ranks have the nan, or the spike, of one.

    rank 0   own gradient, norm 0.9  ┐ average   nan
    rank 1   own gradient, norm nan  ┘           nan      -> rank 1

Each parameter's own gradient is measured as backward makes it, before it leaves. Only where a step
is refused, which all ranks do alike, do they compare: 8 bytes a rank. Cost: one pass over the
gradients, a launch a parameter. Lab: e12.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minitrain.ranks.group import Group

FACTOR = 3.0  # ranks whose batches are alike have norms alike


class OwnNorms:
    """This rank's gradient norm of the last backward, before the average over ranks.

    Make it before the model is wrapped in DDP, whose hooks must come after these.
    """

    def __init__(self, model: nn.Module, group: Group) -> None:
        self.group = group
        self.squares: dict[nn.Parameter, Tensor] = {}
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._take)

    def _take(self, parameter: nn.Parameter) -> None:
        self.squares[parameter] = parameter.grad.detach().double().square().sum()

    def out_of_line(self) -> list[int]:
        """Collective: the ranks whose gradient was not finite, or else far larger than others'."""
        group, squares = self.group, [*self.squares.values()]
        mine = torch.stack(squares).sum().sqrt() if squares else torch.zeros(())
        everyone = torch.empty(group.size, dtype=torch.float64, device=group.device)
        norms = group.all_gather(everyone, mine.double().reshape(1).to(group.device))
        return norms_out_of_line(norms.tolist())


def norms_out_of_line(norms: Sequence[float]) -> list[int]:
    """Two ranks have no median that tells: the smaller one is then the measure. No rank, where all
    are alike: the weights were off, or the batch of each."""
    bad = [rank for rank, norm in enumerate(norms) if not math.isfinite(norm)]
    if bad:
        return bad
    usual = min(norms) if len(norms) == 2 else statistics.median(norms)
    return [rank for rank, norm in enumerate(norms) if norm > FACTOR * usual]
