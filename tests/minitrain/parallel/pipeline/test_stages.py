from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import torch

from minitrain.data.loader import Batch
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.network.fabric import FABRICS
from minitrain.network.logical_clock import LogicalClock
from minitrain.parallel.layout import layout_of
from minitrain.parallel.pipeline.schedules import gpipe, make_schedule
from minitrain.parallel.pipeline.stages import Timed, cut

from .pipeline_toys import microbatches, tiny


def test_the_stages_one_after_the_other_are_the_model():
    """And they hold its own parameters under its own names, each once."""
    model, (batch,) = tiny(), microbatches(1)
    want = model(batch.tokens, batch.documents, batch.positions)
    schedule = make_schedule("interleaved", 2, 2, 3)
    parts = {s.index: s for rank in range(2) for s in cut(model, schedule, rank)}
    x = None
    for index in range(6):
        assert x is None or x.shape == parts[index].message(batch).shape
        x = parts[index](x, batch)
    assert torch.equal(x, want)
    named = [pair for stage in parts.values() for pair in stage.named_parameters()]
    assert len(named) == len(dict(named)) and dict(named) == dict(model.named_parameters())


def test_what_is_cut_off_can_be_freed():
    model = tiny()
    gone = weakref.ref(model.embed)
    (stage,) = cut(model, make_schedule("1f1b", 4, 1), 3)
    del model
    gc.collect()
    assert gone() is None and stage.head is not None


def test_the_same_stage_in_two_chunks_is_one_module():
    middle = cut(tiny(), make_schedule("dualpipe", 3, 4), 1)
    assert middle[0] is middle[1]


def test_the_layout_tells_what_ranks_share():
    schedule = make_schedule("1f1b", 2, 2)
    for tied, name in ((True, "partial"), (False, "split")):
        first, last = (cut(tiny(tied), schedule, rank)[0] for rank in (0, 1))
        for end in (first.embed, last.head):
            assert getattr(layout_of(end.weight), name) == {"pp"}
        assert layout_of(last.norm.weight).split == {"pp"}
    for stage in cut(tiny(), make_schedule("dualpipe", 2, 2), 0):
        assert all(layout_of(p).partial == {"pp"} for p in stage.parameters())


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
