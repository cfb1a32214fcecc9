"""Pipelines written out plainly: one microbatch at a time, and a rank's list of operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minitrain.parallel.pipeline.operations import Operation
from minitrain.parallel.pipeline.stages import Stage
from minitrain.ranks.group import Group
from minitrain.training.loss import token_weighted_loss

Loss = Callable[[Tensor, Any], Tensor]  # (logits, batch) -> its share of the step's loss


def share_of_loss(total_tokens: Tensor | int) -> Loss:
    """The loss of one microbatch as its share of the step's, of `total_tokens` targets in all.

    The shares of all microbatches, on all data-parallel ranks, add up to the mean over all tokens:
    the gradients of unequally full microbatches need no further factor.
    """
    return lambda logits, batch: token_weighted_loss(logits, batch.targets, total_tokens)


def naive_pipeline(group: Group, stage: Stage, batches: Sequence[Any], loss: Loss) -> Tensor:
    """One stage a rank; each microbatch goes there and back before the next one starts."""
    total = torch.zeros((), device=stage.device)
    for batch in batches:
        x = None
        if group.rank > 0:
            x = group.recv(stage.message(batch), group.rank - 1).requires_grad_()
        out = stage(x, batch)
        if group.rank < group.size - 1:
            group.send(out, group.rank + 1)
            out.backward(group.recv(torch.empty_like(out), group.rank + 1))
        else:
            share = loss(out, batch)
            share.backward()
            total = total + share.detach()
        if x is not None:
            group.send(x.grad, group.rank - 1)
    return total


def run_operations(
    group: Group, order: Sequence[Operation], stage: Stage, batches: Sequence[Any]
) -> Tensor:
    """Any schedule of one stage a rank, by the plainest means: it begins to receive when it needs.

    Gradients are those of the mean over the tokens of all microbatches; that loss is returned by
    the last rank, zero by the others.
    """
    total = sum(batch.tokens_counted for batch in batches)
    loss = torch.zeros((), device=stage.device)
    is_last, passes, works = group.rank == group.size - 1, {}, []
    for kind, i, _ in order:
        if kind == "F":
            x = None
            if group.rank > 0:
                x = group.recv(stage.message(batches[i]), group.rank - 1).requires_grad_()
            out = stage(x, batches[i])
            if is_last:
                out = token_weighted_loss(out, batches[i].targets, total)
                loss = loss + out.detach()
            else:
                works.append(group.isend(out.detach(), group.rank + 1))
            passes[i] = x, out
        else:
            x, out = passes.pop(i)
            out.backward(None if is_last else group.recv(torch.empty_like(out), group.rank + 1))
            if x is not None:
                works.append(group.isend(x.grad, group.rank - 1))
    for work in works:
        work.wait()
    return loss
