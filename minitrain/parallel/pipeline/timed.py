"""A stage that takes known times on an emulated clock, whatever it really computes.

    timed = Timed(stage, group.clock, forward_seconds=0.036)     a backward takes twice as much

Tensors, messages and order are real; only the seconds are said. Lab: e02c_pipeline_parallel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from minitrain.network.logical_clock import LogicalClock
from minitrain.parallel.pipeline.stages import Stage


class Timed(nn.Module):
    """A `Stage` whose forward takes `forward_seconds` of the clock, and its backward twice that."""

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
