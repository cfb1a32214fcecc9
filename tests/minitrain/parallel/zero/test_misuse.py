"""Habits of a user of a wrapped model: they work as with FSDP2, or raise one sentence."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.parallel.zero.optimizer import ZeroOptimizer
from minitrain.parallel.zero.stage_3 import Zero3
from minitrain.parallel.zero.state import full_gradients, full_state_dict, load_full_state_dict
from minitrain.ranks.launch import launch

from . import zero_toys as toys


def fine_tuned(group):
    """Steps of a model whose embedding and first block are frozen: both optimizers, every stage."""
    out = []
    for stage in (1, 2, 3):
        for ours in (True, False):
            model = half_frozen()
            zero = toys.wrap(model, group, stage)
            names = [name.removeprefix("module.") for name, _ in zero.named_parameters()]
            assert names == [name for name, _ in model.named_parameters()]
            frozen = [not p.requires_grad for p in zero.parameters()]
            assert frozen == [not p.requires_grad for p in model.parameters()] and any(frozen)
            groups = [{"params": list(zero.parameters())}]
            optimizer = ZeroOptimizer(zero, groups, toys.ADAMW) if ours else toys.ADAMW(groups)
            for step in range(2):
                toys.loss_of(zero, toys.text(step, group.rank, group.size)).backward()
                zero.clip_grad_norm_(toys.LIMIT)
                optimizer.step()
                optimizer.zero_grad()
            out.append(full_state_dict(zero))
            doubled = {name: 2 * t for name, t in out[-1].items()} if group.rank else {}
            load_full_state_dict(zero, doubled, root=1)
            again = full_state_dict(zero)
            assert all(torch.equal(again[name], 2 * t) for name, t in out[-1].items())
    return out


def half_frozen():
    model = toys.toy()
    for module in (model.embed, model.blocks[0]):
        module.requires_grad_(False)
    return model


def test_frozen_parameters_stay_and_load():
    model = half_frozen()
    optimizer = toys.ADAMW(model.parameters())
    for step in range(2):
        toys.loss_of(model, toys.text(step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), toys.LIMIT)
        optimizer.step()
        optimizer.zero_grad()
    want = model.state_dict()
    for states in launch(fine_tuned, ranks=2):
        for state in states:
            assert set(state) == set(want)
            for name, tensor in state.items():
                torch.testing.assert_close(tensor, want[name], rtol=1e-8, atol=1e-8, msg=name)


def refused(group, stage):
    """(what is said, what was tried): of one wrapped model after a backward, weights whole."""
    model = toys.toy()
    zero = toys.wrap(model, group, stage)
    again = partial(toys.wrap, model, group)
    spectral = nn.Sequential(nn.ParameterList([torch.ones(2, dtype=torch.complex64)]))
    attempts = [
        ("one is complex", lambda: toys.wrap(spectral, group, stage)),
        ("wrapped already", lambda: again(1)),
        ("wrapped already", lambda: again(3)),
    ]
    for name in ("generate", "config"):
        with pytest.raises(AttributeError, match=r"zero\.module.*with zero\.gathered\(\)"):
            getattr(zero, name)
    assert not hasattr(zero, "generate") and zero.module is model
    toys.loss_of(zero, toys.text(0, group.rank, group.size)).backward()
    for what, attempt in attempts:
        with pytest.raises(InputError, match=what):
            attempt()
    with zero.gathered():
        for copied in (zero, model):
            with pytest.raises(InputError, match="full_state_dict"):
                copy.deepcopy(copied)
        for attempt in (
            lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5),
            model.zero_grad,
            lambda: [p.grad for p in model.parameters()],
        ):
            with pytest.raises(InputError, match=r"zero\.clip_grad_norm_.*zero\.zero_grad"):
                attempt()
        copied = copy.deepcopy(next(model.parameters()))
        assert type(copied) is nn.Parameter and copied.grad is None


def refused_steps(group, stage):
    """By both optimizers; and what mends it, mends it."""
    for ours in (True, False):
        model = half_frozen()
        zero = toys.wrap(model, group, stage)
        groups = [{"params": list(zero.parameters())}]
        optimizer = ZeroOptimizer(zero, groups, toys.ADAMW) if ours else toys.ADAMW(groups)
        rows = toys.text(0, group.rank, group.size)
        with zero.no_sync():
            toys.loss_of(zero, rows).backward()
        with pytest.raises(InputError, match="leave the last one out"):
            optimizer.step()
        toys.loss_of(zero, rows).backward()
        for block, trains in (model.blocks[1], True), (model.blocks[0], False):
            with zero.gathered():
                block.requires_grad_(not trains)
            with pytest.raises(InputError, match="freeze before wrapping"):
                optimizer.step()
            with zero.gathered():
                block.requires_grad_(trains)
        optimizer.step()
        zero.zero_grad()
        with zero.no_sync():
            toys.loss_of(zero, rows).backward()
        zero.zero_grad()  # what was under no_sync is forgotten, and no reason to complain
        optimizer.step()


def refused_units(group):
    model = toys.toy()
    for units in ([nn.Linear(2, 2)], ["blocks.0"], "blocks", [*model.blocks, None]):
        with pytest.raises(InputError, match="no module of this Transformer"):
            Zero3(model, group, units)
    assert len(Zero3(model, group, model.blocks).units) == 4  # and nothing was wrapped before


def two_backwards(group):
    """Gradients of two backwards of one graph, which add up."""
    out = {}
    for stage in (1, 2, 3):
        zero = toys.wrap(toys.toy(), group, stage)
        loss = toys.loss_of(zero, toys.text(0, group.rank, group.size))
        loss.backward(retain_graph=True)
        loss.backward()
        if stage == 3:
            assert all(unit.full.untyped_storage().nbytes() == 0 for unit in zero.units)
        out[stage] = full_gradients(zero)
    return out


def test_two_backwards_of_one_graph_add_up():
    want = toys.one_process(1)["gradients"]
    for stages in launch(two_backwards, ranks=2):
        for gradients in stages.values():
            for name, gradient in gradients.items():
                torch.testing.assert_close(gradient, 2 * want[name], rtol=1e-10, atol=1e-12)


def every_stage(group):
    refused_units(group)
    for stage in (1, 2, 3):
        refused(group, stage)
        refused_steps(group, stage)


def test_a_habit_that_would_train_wrongly_is_one_sentence():
    launch(every_stage, ranks=2)
