"""A stage with known times: the clock goes on, values and gradients are the stage's own."""

from __future__ import annotations

from dataclasses import replace

import torch

from minitrain.data.loader import Batch
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.network.fabric import FABRICS
from minitrain.network.logical_clock import LogicalClock
from minitrain.parallel.pipeline.schedules import gpipe
from minitrain.parallel.pipeline.stages import cut
from minitrain.parallel.pipeline.timed import Timed


def test_a_backward_takes_twice_a_forward_and_nothing_else_changes():
    config = ModelConfig(32, 8, 1, heads=2, kv_heads=2, ffn_size=16)
    (stage,) = cut(build(config), gpipe(1, 1), 0)
    tokens = torch.arange(6).view(2, 3)
    batch = Batch(tokens, tokens, torch.zeros_like(tokens), torch.arange(3).expand(2, 3))
    stage(None, batch).sum().backward()
    want = [p.grad.clone() for p in stage.parameters()]
    stage.zero_grad()
    clock = LogicalClock(replace(FABRICS["h100-infiniband"](), compute_scale=1e-12), 0)
    out = Timed(stage, clock, 3.0)(None, batch)
    assert abs(clock.now() - 3) < 1e-6
    out.sum().backward()
    assert abs(clock.now() - 9) < 1e-6
    assert all(torch.equal(p.grad, w) for p, w in zip(stage.parameters(), want))
