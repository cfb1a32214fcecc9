"""Rows to other ranks and back: an all-to-all that autograd knows.

What rank r gets from rank s is what s sends to r; the gradient goes the same way back, so backward
is an all-to-all with the two lists of sizes exchanged. Cost: a rank sends the rows that are not its
own forward, and as many gradients as it got rows backward.
Lab: e02d_expert_parallel. Shapes: D width  N ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minitrain.parallel.group import Group


def all_to_all(x: Tensor, group: Group, sent: Sequence[int], got: Sequence[int]) -> Tensor:
    """x (Σ sent, D), sent[r] rows for rank r -> (Σ got, D). Backward sends the gradients back."""
    return _AllToAll.apply(x, group, sent, got)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: Group, sent: Sequence[int], got: Sequence[int]) -> Tensor:
        ctx.arguments = (group, got, sent)
        return group.all_to_all(x.new_empty(sum(got), x.shape[1]), x, got, sent)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return _AllToAll.apply(dy, *ctx.arguments), None, None, None
