"""ZeRO: data parallelism whose ranks stop keeping copies of what only one of them has to update.

P parameters, N ranks; bytes a rank holds, in mixed precision (bfloat16, AdamW in float32), and when
all is float32; what it sends, in units of P elements:

                                    mixed           float32      sends
    DDP                             16 P            16 P         2     all-reduce
    stage 1  optimizer state        4 P + 12 P/N    8 P + 8 P/N  2     reduce-scatter, all-gather
    stage 2  and gradients          2 P + 14 P/N    4 P + 12 P/N 2     the same
    stage 3  and parameters         16 P/N          16 P/N       3     and a gather more: stage_3.py

    compute   |- backward 3 -|- backward 2 -|- backward 1 -|·|- step 3 -|- step 2 -|- step 1 -|·|
    link                     |-- reduce 3 --|-- reduce 2 --|-|          |gather 3  |gather 2  |-|

Paper: Rajbhandari et al. 2020, "ZeRO", table 1 (stage 3 keeps float32 shards and no bfloat16 ones:
14 P/N). Lab: e03. Shapes: S elements of a unit (unit.py)  N ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.optimizers.groups import clip_factor
from minitrain.parallel.ddp import (
    BUCKET_BYTES,
    all_reduce_gradients,
    broadcast_parameters,
    bucket_groups,
    trainable,
)
from minitrain.parallel.zero.unit import Unit
from minitrain.ranks.group import Group
from minitrain.training.loop import Peers


def deal(model: nn.Module, ranks: int) -> dict[nn.Parameter, int]:
    """Each parameter's owner: the largest first, to whoever has least so far."""
    loads, owners = [0] * ranks, {}
    for parameter in sorted(trainable(model), key=lambda p: -p.numel()):
        owners[parameter] = loads.index(min(loads))
        loads[owners[parameter]] += parameter.numel()
    return owners


def naive_zero1_step(
    group: Group, model: nn.Module, optimizer: torch.optim.Optimizer, owners: dict
) -> None:
    """Stage 1 as first thought of: `optimizer` has only this rank's parameters, whole ones.

    All ranks reduce all gradients, each updates its own, and each of those is broadcast: 3 P
    elements for stage 1's 2, a message a parameter, and the largest parameter is never shared.
    """
    all_reduce_gradients(group, model)
    optimizer.step()
    for parameter, owner in owners.items():
        group.broadcast(parameter.data, owner)


class Sharded(nn.Module):
    """What all stages share: units whose gradients are reduced to shards while backward runs.

    A hook moves each gradient into its unit; when a unit has all, and all units before it are on
    their way, its reduce-scatter starts. At most two units hold gradients in full: one fills, one
    is sent. Units leave in the same order on every rank, whatever the order of the hooks.
    `pieces` are this rank's parameters for the optimizer; the model's own have no `.grad`.
    """

    def __init__(self, model: nn.Module, group: Group, units: Sequence[Unit], stage: int) -> None:
        super().__init__()
        self.module, self.group, self.units, self.stage = model, group, list(units), stage
        self.trained = [unit for unit in units if unit.trains]
        self.pieces = nn.ParameterList(
            piece.weight for unit in units for piece in unit.pieces.values()
        )
        self.unit_of = {p: unit for unit in self.trained for p in unit.places}
        self.order = self.trained  # in which units are reduced
        self.synchronize = True
        self.unfinished = False  # a backward is due whose gradients must be reduced
        self.in_backward = False
        self.issued = 0  # reduce-scatters started
        for parameter in self.unit_of:
            parameter.register_post_accumulate_grad_hook(self._accumulated)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        self.unfinished |= torch.is_grad_enabled() and self.synchronize
        return self.module(*inputs, **named_inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward in here adds up whole gradients and sends nothing: fewer bytes, more memory."""
        before, self.synchronize = self.synchronize, False
        try:
            yield
        finally:
            self.synchronize = before

    def finish(self) -> None:
        """Reduces what is left and waits. The end of backward calls it; twice is as good as once.

        Call it yourself where a rank may have no gradient at all.
        """
        if self.synchronize and self.unfinished:
            for unit in self.order:
                unit.missing.clear()
            self._issue_ready()
            for unit in self.order[-1:]:
                unit.finish_reduce()
            self.unfinished = False
        for unit in self.trained:
            unit.reset()
        self.in_backward, self.issued = False, 0

    @torch.no_grad()
    def clip(self, limit: float) -> Tensor:
        """Scales all ranks' gradients by one factor to the length `limit`; returns that before.

        The shards do not overlap and their padding is 0, so every element counts once.
        """
        square = sum(unit.squared_gradient() for unit in self.trained)
        norm = self.group.all_reduce(square).sqrt()
        for unit in self.trained:
            unit.scale_gradient(clip_factor(norm, limit))
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        for unit in self.trained:
            unit.forget_gradient()

    def peers(self) -> Peers:
        """For `train_step`: each microbatch is reduced as it ends, in stage 1 only the last one."""
        no_sync = self.no_sync if self.stage == 1 else nullcontext
        clip = lambda _, limit: self.clip(limit)  # noqa: E731
        return Peers(self.group.size, self.group.all_reduce, self.finish, no_sync, clip)

    def updated(self, unit: Unit) -> None:
        """The optimizer has moved the unit's shard; in stages 1 and 2 it sets out to all ranks."""
        unit.free()
        if self.stage < 3:
            unit.start_gather()

    def _accumulated(self, parameter: nn.Parameter) -> None:
        self._begin_backward()
        self.unit_of[parameter].take(parameter)
        if self.synchronize:
            self._issue_ready()

    def _begin_backward(self) -> None:
        if not self.in_backward:
            self.in_backward, self.unfinished = True, self.synchronize
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def _issue_ready(self) -> None:
        while self.issued < len(self.order) and not self.order[self.issued].missing:
            if self.issued:
                self.order[self.issued - 1].finish_reduce()
            self.order[self.issued].start_reduce()
            self.issued += 1


class Zero(Sharded):
    """Stages 1 and 2: the parameters stay whole. A model in bfloat16 gets float32 shards.

    Both reduce alike; stage 1 keeps the buffers of all gradients, so that microbatches under
    `no_sync` cost it nothing, and stage 2 frees each as soon as its part is with its owner: two are
    held at a time. By default a bucket is an eighth of the model, from 2 MB to DDP's 25.
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        stage: int = 2,
        bucket_bytes: int | None = None,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        if stage not in (1, 2):
            raise InputError(f"stage {stage!r}: Zero is stage 1 or 2; Zero3 is stage 3")
        broadcast_parameters(group, model)
        names = {parameter: name for name, parameter in model.named_parameters()}
        eighth = sum(p.nbytes for p in trainable(model)) // 8
        buckets = bucket_groups(model, bucket_bytes or min(BUCKET_BYTES, max(2 * 2**20, eighth)))
        units = [
            Unit({names[p]: p for p in bucket}, group, stage, reduce_dtype=reduce_dtype)
            for bucket in buckets
        ]
        super().__init__(model, group, units, stage)
