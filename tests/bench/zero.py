"""Our ZeRO against torch's: a whole step of a model on 2 ranks, in seconds and in peak bytes.

    stage 1   DDP with ZeroRedundancyOptimizer      stage 2   FSDP2, reshard_after_forward=False
    stage 3   FSDP2                                 offload   FSDP2 with CPUOffloadPolicy

Forward, loss, backward, AdamW (torch's fused one for all). Before timing, both must give the same
losses for three steps. The batch is small, so that communication is a visible part of the step.
Offload is to memory and only timed: on a CPU source and destination coincide. The bytes are a
`MemoryLedger`'s of the third step, without the network library's buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from minitrain.bench.case import OURS, PEER, TORCH, Case, Costs, Shapes, in_turn, on_ranks
from minitrain.bench.steps import next_token_loss, random_text, training_step
from minitrain.measure.memory import MemoryLedger
from minitrain.memory.stores import MemoryStore
from minitrain.model.config import preset
from minitrain.model.transformer import Transformer, build
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.parallel.zero.sharded import Zero
from minitrain.parallel.zero.stage_3 import Zero3
from minitrain.ranks.group import Group

SHAPES = (("1M", 2, 128), ("10M", 1, 128), ("50M", 1, 128))
ADAMW = partial(torch.optim.AdamW, lr=1e-4, weight_decay=0.1, fused=True)
SECONDS_REASON = (
    "both compute the same and send about the same, so what is left is noise (see the spread) or "
    "our hooks, which run in Python"
)
BYTES_REASON = "the peer frees a buffer earlier than we do"
Trained = tuple[nn.Module, object]  # the callable model and its optimizer


def redundancy_optimizer(group: Group, model: Transformer) -> Trained:
    process_group = group.process_group
    ddp = DistributedDataParallel(
        model, process_group=process_group, gradient_as_bucket_view=True
    )  # saves a copy of the gradients, and makes the buckets visible to the ledger
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), ADAMW.func, process_group=process_group, **ADAMW.keywords
    )
    return ddp, optimizer


def sharded(stage: int, group: Group, model: Transformer) -> Trained:
    zero = Zero3(model, group) if stage == 3 else Zero(model, group, stage=stage)
    return zero, ZeroOptimizer(zero, [{"params": list(model.parameters())}], ADAMW)


def offloaded(group: Group, model: Transformer) -> Trained:
    zero = Zero3(model, group)
    groups = [{"params": list(model.parameters())}]
    return zero, ZeroOptimizer(zero, groups, ADAMW, MemoryStore(), ("gradients", "parameters"))


def fsdp2(
    group: Group, model: Transformer, reshard: bool = True, policy: OffloadPolicy | None = None
) -> Trained:
    mesh = DeviceMesh.from_group(group.process_group, group.device.type)
    options = {"mesh": mesh, "offload_policy": policy or OffloadPolicy()}
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=reshard, **options)
    fully_shard(model, reshard_after_forward=reshard, **options)
    return model, ADAMW(model.parameters())


PAIRS = {
    "ZeRO-1": (partial(sharded, 1), redundancy_optimizer, "ZeroRedundancyOptimizer"),
    "ZeRO-2": (partial(sharded, 2), partial(fsdp2, reshard=False), "FSDP2, not resharded,"),
    "ZeRO-3": (partial(sharded, 3), fsdp2, "FSDP2"),
    "ZeRO-3 offloaded": (
        offloaded,
        partial(fsdp2, policy=CPUOffloadPolicy(pin_memory=False)),
        "FSDP2 with CPUOffloadPolicy",
    ),
}


def cases(repeats: int = 15, shapes: Shapes = SHAPES, ranks: int = 2) -> list[Case]:
    return [
        Case(
            f"{pair} {'step' if unit == 'seconds' else 'peak'} {name}, {batch} x {length}, "
            f"{ranks} ranks",
            f"{PAIRS[pair][2]} of {TORCH}",
            partial(on_ranks, measured, pair, name, batch, length, unit, repeats, ranks=ranks),
            SECONDS_REASON if unit == "seconds" else BYTES_REASON,
            unit,
        )
        for name, batch, length in shapes
        for pair in PAIRS
        for unit in ("seconds", "bytes")
        if unit == "seconds" or pair != "ZeRO-3 offloaded"
    ]


def measured(
    group: Group, pair: str, name: str, batch: int, length: int, unit: str, repeats: int
) -> Costs:
    """On each rank: both contenders give the same losses; then the seconds or bytes of a step."""
    text = random_text(name, batch, length, group.device, seed=group.rank)
    makers = dict(zip((OURS, PEER), PAIRS[pair][:2]))
    if unit == "bytes":
        peaks = {who: _peak(group, make, name, text) for who, make in makers.items()}
        torch.testing.assert_close(*(losses for losses, _ in peaks.values()), rtol=1e-3, atol=1e-4)
        return {who: [float(peak)] for who, (_, peak) in peaks.items()}
    model = build(preset(name), device=group.device)
    steps = {who: _step(*make(group, copy.deepcopy(model)), text) for who, make in makers.items()}
    losses = {who: [step() for _ in range(3)] for who, step in steps.items()}
    torch.testing.assert_close(losses[OURS], losses[PEER], rtol=1e-3, atol=1e-4)
    return in_turn(group, steps, repeats)


def _peak(group: Group, make: Callable[..., Trained], name: str, text: Tensor) -> tuple:
    """(losses of three steps, bytes at the highest moment of the last), with no other model in
    memory."""
    model, optimizer = make(group, build(preset(name), device=group.device))
    inner = "inner" if hasattr(optimizer, "inner") else "optim"  # ours and torch's wrap another
    ledger = MemoryLedger(model, getattr(optimizer, inner, optimizer))
    step = _step(model, optimizer, text)
    losses = [step(), step()]
    with ledger:
        losses.append(step())
    group.barrier()
    return losses, ledger.peak_bytes


def _step(model: nn.Module, optimizer: object, text: Tensor) -> Callable[[], Tensor]:
    return training_step(partial(next_token_loss, model, text), optimizer)
