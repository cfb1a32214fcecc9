"""Our tensor parallelism against torch's, on 2 ranks: a block, and vocabulary-parallel loss.

The block: `parallelize_module` with ColwiseParallel and RowwiseParallel, as in torch's tutorial, on
a copy of the same block. The loss: `loss_parallel`, on the same logits. Forward and backward;
seconds, and peak allocated bytes. Before that, both must give the same values and gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from minitrain.bench.case import OURS, PEER, TORCH, Case, Costs, Shapes, Steps, in_turn, on_ranks
from minitrain.measure.memory import peak_allocated_bytes
from minitrain.model.config import preset
from minitrain.model.transformer import build
from minitrain.parallel.tensor.layers import tensor_parallel
from minitrain.parallel.tensor.vocabulary import vocabulary_parallel_loss
from minitrain.ranks.group import Group

BLOCKS = (("1M", 4, 128), ("10M", 1, 128), ("10M", 4, 256))
LOSSES = ((1024, 512), (512, 32000))  # tokens, vocabulary
BLOCK_REASON = (
    "the matmuls are the same, and torch sums the input's gradient once for q, k and v each, where "
    "ours does it once for all: what is left is noise (see the spread)"
)
LOSS_REASON = (
    "both compute two exponentials a logit, and ours sends one message where torch sends three: "
    "what is left is noise (see the spread)"
)
Make = Callable[[Group], Steps]


def cases(
    repeats: int = 15,
    blocks: Shapes = BLOCKS,
    losses: Sequence[tuple[int, int]] = LOSSES,
    ranks: int = 2,
) -> list[Case]:
    out = []
    for name, batch, length in blocks:
        title = f"TP block {name}, {batch} x {length}, {ranks} ranks"
        make = partial(block_pair, name, batch, length)
        peer = f"parallelize_module of {TORCH}"
        out += pair_of_cases(title, peer, make, BLOCK_REASON, repeats, ranks)
    for tokens, vocab_size in losses:
        title = f"vocabulary-parallel loss, {tokens} x {vocab_size}, {ranks} ranks"
        make = partial(loss_pair, tokens, vocab_size)
        peer = f"loss_parallel of {TORCH}"
        out += pair_of_cases(title, peer, make, LOSS_REASON, repeats, ranks)
    return out


def pair_of_cases(
    title: str, peer: str, make: Make, reason: str, repeats: int, ranks: int
) -> list[Case]:
    """The cases for seconds and bytes of the pair from `make(group)`."""
    time = partial(on_ranks, timed, make, repeats, ranks=ranks)
    peak = partial(on_ranks, held, make, ranks=ranks)
    return [
        Case(title, peer, time, reason),
        Case(f"{title}, peak", peer, peak, "torch frees a buffer earlier than we do", "bytes"),
    ]


def timed(group: Group, make: Make, repeats: int) -> Costs:
    return in_turn(group, make(group), repeats)


def held(group: Group, make: Make) -> Costs:
    """The least of nine: late frees by gloo's threads are not the contender's."""
    return {
        name: [min(peak_allocated_bytes(run, group.device) for _ in range(9))]
        for name, run in make(group).items()
    }


def block_pair(name: str, batch: int, length: int, group: Group) -> Steps:
    model = build(preset(name), device=group.device)
    theirs = copy.deepcopy(model.blocks[0])
    ours = tensor_parallel(model, group).blocks[0]
    parallelize_module(theirs, _device_mesh(group), PLAN)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, length, model.config.hidden_size, generator=generator).to(group.device)
    turns, mask = model.surroundings(x)
    steps = {
        name: partial(_block_step, block, x, turns, mask)
        for name, block in ((OURS, ours), (PEER, theirs))
    }
    _check_same(steps)
    return steps


COLUMNS = ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")
PLAN = {
    **dict.fromkeys(COLUMNS, ColwiseParallel()),
    "attention.o": RowwiseParallel(),
    "mlp.down": RowwiseParallel(),
}


def _block_step(block: nn.Module, x: Tensor, turns: object, mask: object) -> tuple[Tensor, ...]:
    """Forward and backward; returns the output and all gradients, and clears them."""
    x = x.detach().requires_grad_()
    y = block(x, turns, mask)
    y.sum().backward()
    gradients = [_local(p.grad) for p in block.parameters()]
    block.zero_grad(set_to_none=True)
    return y.detach(), x.grad, *gradients


def loss_pair(tokens: int, vocab_size: int, group: Group) -> Steps:
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(tokens, vocab_size, generator=generator)
    logits = whole.chunk(group.size, dim=-1)[group.rank].contiguous().to(group.device)
    targets = torch.randint(vocab_size, (tokens,), generator=generator).to(group.device)
    mesh = _device_mesh(group)

    def ours() -> tuple[Tensor, Tensor]:
        mine = logits.detach().requires_grad_()
        loss = vocabulary_parallel_loss(mine[None], targets[None], tokens, group, vocab_size)
        loss.backward()
        return loss.detach(), mine.grad

    def theirs() -> tuple[Tensor, Tensor]:
        mine = logits.detach().requires_grad_()
        with loss_parallel():
            loss = F.cross_entropy(DTensor.from_local(mine, mesh, [Shard(1)]), targets)
            loss.backward()
        return _local(loss.detach()), mine.grad

    steps = {OURS: ours, PEER: theirs}
    _check_same(steps)
    return steps


def _check_same(steps: Steps) -> None:
    torch.testing.assert_close(steps[OURS](), steps[PEER](), rtol=1e-3, atol=1e-5)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _device_mesh(group: Group) -> DeviceMesh:
    return DeviceMesh.from_group(group.process_group, group.device.type)
