"""Our DDP beside torch's: a whole step of a model and its copy on 2 ranks, in turn.

Forward, loss, backward with the gradients averaged meanwhile, and AdamW (torch's fused one for
both). Before it is timed, both must leave the same gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.bench.case import OURS, PEER, Case, in_turn, on_ranks
from minitrain.model.config import preset
from minitrain.model.transformer import build
from minitrain.optimizers.adamw import adamw
from minitrain.parallel.ddp import DDP
from minitrain.ranks.group import Group

SHAPES = (("1M", 8, 128), ("10M", 4, 128))  # preset, batch a rank, length
REASON = (
    "the matmuls and the bytes are the same, so what is left is noise (see the spread) or our "
    "hooks, which run in Python, a call a parameter, where torch's run in C++"
)


def cases(
    repeats: int = 15, shapes: Sequence[tuple[str, int, int]] = SHAPES, ranks: int = 2
) -> list[Case]:
    return [
        Case(
            f"DDP step {name}, {batch} x {length}, {ranks} ranks",
            f"DDP of torch {torch.__version__}",
            partial(on_ranks, measured, name, batch, length, repeats, ranks=ranks),
            REASON,
        )
        for name, batch, length in shapes
    ]


def measured(
    group: Group, name: str, batch: int, length: int, repeats: int
) -> dict[str, list[float]]:
    """On each rank: both contenders leave the same gradients, and then their steps are timed."""
    config = preset(name)
    model = build(config, device=group.device)
    ours = DDP(copy.deepcopy(model), group)
    peer = DistributedDataParallel(model, process_group=group.process_group)
    generator = torch.Generator().manual_seed(group.rank)
    text = torch.randint(config.vocab_size, (batch, length + 1), generator=generator)
    text = text.to(group.device)
    _check_gradients(ours, peer, text)
    steps = {OURS: _step(ours, text), PEER: _step(peer, text)}
    return in_turn(group, steps, repeats)


def _loss(model: nn.Module, text: Tensor) -> Tensor:
    """text (B, T+1) -> the mean cross-entropy of the next tokens."""
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def _check_gradients(ours: DDP, peer: DistributedDataParallel, text: Tensor) -> None:
    for model in (ours, peer):
        _loss(model, text).backward()
    for mine, theirs in zip(ours.module.parameters(), peer.module.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-6)


def _step(model: nn.Module, text: Tensor) -> Callable[[], None]:
    optimizer = adamw(model, lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        _loss(model, text).backward()
        optimizer.step()

    return step
