"""Plain pipeline parallelism: one stage a rank, which runs its list of operations.

    forward    receive x from the stage before    compute         send y to the next stage
    backward   receive dy from the next stage     compute         send dx to the one before

    rank 0     F0 ·→ F1 ·→ ·· B0 ·· B1            `→` is sent in the background; a receive
    rank 1     ·· F0 B0 ·→ F1 B1 ·→               starts when needed, and blocks

The first stage has tokens instead of x, the last one the loss instead of dy. A forward's tensors
(x and y, with the graph between) are held until its backward: the schedule decides how many.
`executor.py` runs every schedule; this runs those of one chunk a rank and whole backwards.
Lab: e02c_pipeline_parallel.
"""

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
    """The loss of one microbatch as its share of the step's, which has `total_tokens` targets.

    The shares of all microbatches, on all data-parallel ranks, add up to the mean over all tokens:
    microbatches with unequal numbers of targets need no further factor.
    """
    return lambda logits, batch: token_weighted_loss(logits, batch.targets, total_tokens)


def run_operations(
    group: Group, order: Sequence[Operation], stage: Stage, batches: Sequence[Any]
) -> Tensor:
    """One step of this rank: adds to `.grad` of its stage. `order`: see `schedules.py`.

    Gradients are those of the mean over the tokens of all microbatches; the last rank returns that
    loss, the others zero.
    """
    share = share_of_loss(sum(batch.tokens_counted for batch in batches))
    loss = torch.zeros((), device=stage.device)
    is_last, passes, works = group.rank == group.size - 1, {}, []
    for kind, i, _ in order:
        if kind == "F":
            x = None
            if group.rank > 0:
                x = group.recv(stage.message(batches[i]), group.rank - 1).requires_grad_()
            out = stage(x, batches[i])
            if is_last:
                out = share(out, batches[i])
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
