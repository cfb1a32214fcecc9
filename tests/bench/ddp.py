"""Our DDP against torch's: a whole step of a model and its copy on 2 ranks, alternating.

Forward, loss, backward with overlapped gradient averaging, and AdamW (torch's fused one for both).
Before timing, both must leave the same gradients.
"""

from __future__ import annotations

import copy
from functools import partial

import torch
from torch.nn.parallel import DistributedDataParallel

from minitrain.bench.case import OURS, PEER, TORCH, Case, Costs, Shapes, in_turn, on_ranks
from minitrain.bench.steps import gradients, next_token_loss, random_text, training_step
from minitrain.model.config import preset
from minitrain.model.transformer import build
from minitrain.optimizers.adamw import adamw
from minitrain.parallel.ddp import DDP
from minitrain.ranks.group import Group

SHAPES = (("1M", 8, 128), ("10M", 4, 128))
REASON = (
    "the matmuls and the bytes are the same, so what is left is noise (see the spread) or our "
    "hooks, which run in Python, a call a parameter, where torch's run in C++"
)


def cases(repeats: int = 15, shapes: Shapes = SHAPES, ranks: int = 2) -> list[Case]:
    return [
        Case(
            f"DDP step {name}, {batch} x {length}, {ranks} ranks",
            f"DDP of {TORCH}",
            partial(on_ranks, measured, name, batch, length, repeats, ranks=ranks),
            REASON,
        )
        for name, batch, length in shapes
    ]


def measured(group: Group, name: str, batch: int, length: int, repeats: int) -> Costs:
    """On each rank: checks that both contenders leave the same gradients, then times their
    steps."""
    model = build(preset(name), device=group.device)
    ours = DDP(copy.deepcopy(model), group)
    peer = DistributedDataParallel(model, process_group=group.process_group)
    text = random_text(name, batch, length, group.device, seed=group.rank)
    for contender in (ours, peer):
        next_token_loss(contender, text).backward()
    torch.testing.assert_close(gradients(ours), gradients(peer), rtol=1e-3, atol=1e-6)
    steps = {
        who: training_step(partial(next_token_loss, model, text), adamw(model, lr=1e-4))
        for who, model in ((OURS, ours), (PEER, peer))
    }
    return in_turn(group, steps, repeats)
