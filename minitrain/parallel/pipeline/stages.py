"""Cuts a Transformer into the stages of a pipeline.

    stage 0             embed   blocks 0 … 3
    stage 1                     blocks 4 … 8         the middle takes the remainder
    stage 2                     blocks 9 … 12   norm   head

A stage keeps the model's names (`blocks.4.mlp.up.weight`) and its very modules, so a model with
swapped modules (tensor parallel, experts) is cut the same way. Parameters held by several ranks
have gradients that are parts of a sum over them: an embedding tied to the head, and in DualPipe
every stage. Lab: e02c_pipeline_parallel. Shapes: B batch  T tokens  D width  V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.model.transformer import Transformer, all_tokens
from minitrain.network.logical_clock import LogicalClock
from minitrain.parallel.layout import lay_out
from minitrain.parallel.pipeline.operations import Schedule
from minitrain.parallel.pipeline.schedules import split_layers


class Stage(nn.Module):
    """Some blocks of a model, with its embedding before them or its norm and head after them."""

    def __init__(self, model: Transformer, index: int, stages: int, blocks: range) -> None:
        super().__init__()
        first, last = index == 0, index == stages - 1
        self.index, self.width = index, model.config.hidden_size
        self.dtype, self.device = model.embed.weight.dtype, model.embed.weight.device
        self.autocast: torch.dtype | None = None  # matmul dtype, if different
        self.look_around, self.stack = model.look_around, model.stack
        self.sequence_ranks, self.is_tied = model.sequence_ranks, model.config.tied
        self.embed = model.embed if first else None
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in blocks})
        self.norm = model.norm if last else None
        self.head = model.head if last else None

    def forward(self, x: Tensor | None, batch: Any) -> Tensor:
        """x (B, T, D), None on the first stage -> (B, T, D), on the last stage logits (B, T, V)."""
        lower = self.autocast and torch.autocast(self.device.type, self.autocast)
        with lower or nullcontext():
            if self.embed is not None:
                x = self.embed(batch.tokens)  # (B, T, D)
            whole = all_tokens(x, self.sequence_ranks)
            turns, mask = self.look_around(whole, batch.documents, batch.positions)
            x = self.stack(self.blocks.values(), x, turns, mask)
            return x if self.head is None else self.head(self.norm(x))

    def message(self, batch: Any) -> Tensor:
        """A buffer (B, T, D) for the previous stage's output, or the gradient sent back to it."""
        rows, tokens = batch.tokens.shape
        tokens //= self.sequence_ranks
        return torch.empty(rows, tokens, self.width, dtype=self.dtype, device=self.device)

    @property
    def tied(self) -> nn.Parameter | None:
        """The matrix that embedding and head share, if this stage has it."""
        end = self.embed if self.embed is not None else self.head
        return end.weight if self.is_tied and end is not None else None


def cut(
    model: Transformer, schedule: Schedule, rank: int, layers: Sequence[int] | None = None
) -> list[Stage]:
    """The stages that `rank` holds, one for each of its chunks; `layers[s]` blocks in stage s.

    A rank with the same stage in two chunks holds it once.
    """
    count = schedule.stages
    layers = split_layers(len(model.blocks), count) if layers is None else layers
    if len(layers) != count or sum(layers) != len(model.blocks) or min(layers) < 0:
        raise InputError(
            f"layers {list(layers)} for {count} stages of a model with {len(model.blocks)} blocks: "
            f"give {count} numbers of that sum, such as {split_layers(len(model.blocks), count)}"
        )
    ends = [0, *accumulate(layers)]
    mine = [schedule.stage_at[rank, c] for c in range(schedule.chunks)]
    made = {s: Stage(model, s, count, range(ends[s], ends[s + 1])) for s in mine}
    for stage in made.values():
        for parameter, ranks in holders(schedule, stage):
            lay_out(parameter, **{"split" if len(ranks) == 1 else "partial": "pp"})
    return [made[s] for s in mine]


def holders(schedule: Schedule, stage: Stage) -> Iterator[tuple[nn.Parameter, tuple[int, ...]]]:
    """Each parameter of the stage, and the ranks that hold it."""
    here = ranks_with(schedule, stage.index)
    ends = ranks_with(schedule, 0, schedule.stages - 1)
    for parameter in stage.parameters():
        yield parameter, ends if parameter is stage.tied else here


def ranks_with(schedule: Schedule, *stages: int) -> tuple[int, ...]:
    return tuple(sorted({rank for (rank, _), s in schedule.stage_at.items() if s in stages}))


class Timed(nn.Module):
    """A `Stage` with given times on an emulated clock, independent of its real compute time.

        timed = Timed(stage, group.clock, forward_seconds=0.036)     a backward takes twice as much

    Tensors, messages and their order are real; only the seconds are given.
    """

    def __init__(self, stage: Stage, clock: LogicalClock, forward_seconds: float) -> None:
        super().__init__()
        self.stage, self.clock, self.seconds = stage, clock, forward_seconds
        self.message, self.device = stage.message, stage.device

    def forward(self, x: Tensor | None, batch: Any) -> Tensor:
        out = self.stage(x, batch)
        self.clock.advance(self.seconds)
        return _Backward.apply(out, self.clock, 2 * self.seconds)


class _Backward(torch.autograd.Function):
    """Advances the clock at the start of the stage's backward."""

    @staticmethod
    def forward(ctx, out: Tensor, clock: LogicalClock, seconds: float) -> Tensor:
        ctx.clock, ctx.seconds = clock, seconds
        return out.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        ctx.clock.advance(ctx.seconds)
        return gradient, None, None
