"""Settings and weights of a stranger: the same step as torch's, or one sentence."""

from __future__ import annotations

import copy
import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from minitrain.errors import InputError
from minitrain.optimizers.adam8bit import Adam8bit
from minitrain.optimizers.adamw import AdamW, NaiveAdamW
from minitrain.optimizers.groups import clip_by_global_norm, parameter_groups
from minitrain.optimizers.learning_rate import warmup_cosine
from minitrain.optimizers.sgd import SGD

from .rules import KINDS

NAN, INF = float("nan"), float("inf")


def stepped(kind, *shape):
    parameter = weight(*shape)
    parameter.grad = torch.ones(shape)
    optimizer = kind([parameter])
    optimizer.step()
    return optimizer


def weight(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return nn.Parameter(torch.randn(*shape, generator=generator).to(dtype))


SETTINGS = {
    "lr": (-1e-3, NAN, INF), "weight_decay": (-0.1, NAN), "betas": ((1.0, 0.9), (0.9, -0.1), (0.9,)),
    "eps": (-1e-8,), "momentum": (-0.9, INF), "beta2_decay": (0.8, NAN), "smallest_weight": (-1.0,),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_that_no_step_can_be_made_with(kind, setting):
    if setting not in kind([weight(2)]).defaults:
        pytest.skip("it has no such setting")
    for value in SETTINGS[setting]:
        with pytest.raises(InputError, match=f"{kind.__name__} got {setting}="):
            kind([weight(2)], **{setting: value})
        optimizer = kind([weight(2)])
        with pytest.raises(InputError, match=f"{kind.__name__} got {setting}="):
            optimizer.add_param_group({"params": [weight(2)], setting: value})
        assert len(optimizer.param_groups) == 1
        saved = optimizer.state_dict()
        saved["param_groups"][0][setting] = value
        with pytest.raises(InputError, match=f"{kind.__name__} got {setting}="):
            optimizer.load_state_dict(saved)


@pytest.mark.parametrize("kind", KINDS)
def test_complex_weights(kind):
    complex_weight = weight(3, 4, dtype=torch.complex64)
    if kind is not SGD:
        with pytest.raises(InputError, match="one is complex"):
            kind([complex_weight])
        return
    theirs = copy.deepcopy(complex_weight)
    for parameter, optimizer in (
        (complex_weight, SGD([complex_weight], lr=0.1)),
        (theirs, torch.optim.SGD([theirs], lr=0.1, momentum=0.9)),
    ):
        for _ in range(3):
            parameter.grad = torch.full_like(parameter, 1 + 2j)
            optimizer.step()
    assert torch.equal(complex_weight, theirs)


@pytest.mark.parametrize("name", ["amsgrad", "maximize"])
def test_state_of_another_rule_is_refused(name):
    theirs = torch.optim.AdamW([weight(2)], **{name: True})
    for kind in (NaiveAdamW, AdamW, Adam8bit):
        with pytest.raises(InputError, match=f"has no {name}=True"):
            kind([weight(2)]).load_state_dict(theirs.state_dict())
        with pytest.raises(InputError, match=f"has no {name}=True"):
            kind([{"params": [weight(2)], name: True}])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_state_is_loaded_by_the_rule_that_saved_it(kind, other):
    """State of another rule was kept and never read, or ended in a KeyError at the next step."""
    saved = stepped(other, 64, 100).state_dict()
    optimizer = stepped(kind, 64, 100)
    before = copy.deepcopy(optimizer.state_dict())
    if kind is other or {kind, other} == {AdamW, NaiveAdamW}:
        optimizer.load_state_dict(saved)
    else:
        with pytest.raises(InputError, match=r"saved optimizer has no |saved state (has|lacks) "):
            optimizer.load_state_dict(saved)
        assert str(optimizer.state_dict()) == str(before)
    optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_weights_in_another_order(kind):
    """Means of one weight were loaded for another, and a step mixed the two up."""
    with pytest.raises(InputError, match=r"needs \("):
        stepped(kind, 100, 64).load_state_dict(stepped(kind, 200, 64).state_dict())


def test_older_state_of_torch_is_read():
    """Steps were ints, and a momentum that has not begun is None."""
    ours, theirs = weight(2), weight(2)
    one, other = AdamW([ours]), torch.optim.AdamW([theirs])
    theirs.grad = torch.ones(2)
    other.step()
    saved = copy.deepcopy(other.state_dict())
    saved["state"][0]["step"] = 1
    with torch.no_grad():
        ours.copy_(theirs)
    one.load_state_dict(saved)
    ours.grad, theirs.grad = torch.ones(2), torch.ones(2)
    one.step(), other.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)
    sgd, ball = SGD([weight(2)]), weight(2)
    plain = torch.optim.SGD([ball], lr=1e-2)
    ball.grad = torch.ones(2)
    plain.step()
    state = plain.state_dict()
    state["state"] = {0: {"momentum_buffer": None}}
    sgd.load_state_dict({**state, "param_groups": sgd.state_dict()["param_groups"]})
    sgd.param_groups[0]["params"][0].grad = torch.ones(2)
    sgd.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0)])
def test_numbers_and_empty_weights(kind, shape):
    parameter = weight(*shape) if shape else nn.Parameter(torch.tensor(2.0))
    optimizer = kind([parameter], lr=1e-2)
    for _ in range(3):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert parameter.shape == shape and parameter.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_that_is_nan_is_seen_in_the_weight(kind):
    parameter = weight(3, 2)
    parameter.grad = torch.full_like(parameter, NAN)
    kind([parameter], lr=1e-2).step()
    assert parameter.isnan().all()


@pytest.mark.parametrize("kind", [NaiveAdamW, AdamW, SGD])
def test_a_rate_that_is_a_tensor(kind):
    one, other = weight(3, 2), weight(3, 2)
    for parameter, lr in ((one, 0.125), (other, torch.tensor(0.125))):
        optimizer = kind([parameter], lr=lr)
        for _ in range(2):
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    torch.testing.assert_close(one, other)


# --- groups, clipping, rates, the loss's scale ---


SPARED = nn.Embedding(3, 2), nn.EmbeddingBag(3, 2), nn.LayerNorm([3, 4]), nn.RMSNorm([3, 4])


@pytest.mark.parametrize("module", SPARED, ids=lambda module: type(module).__name__)
def test_tables_and_norms_do_not_decay_whoever_holds_them(module):
    for model in (module, nn.Sequential(module)):
        assert [group["weight_decay"] for group in parameter_groups(model, 0.1)] == [0.0]


def test_float16_gradients_longer_than_float16_can_say():
    """A norm summed in float16 was infinite from 65,504 on, and the factor 0: the step was lost."""
    long, short = weight(10_000, dtype=torch.float16), weight(10)
    long.grad = torch.full((10_000,), 1000.0, dtype=torch.float16)
    short.grad = torch.ones(10)
    norm = clip_by_global_norm([long, short], 100.0)
    assert norm.item() == pytest.approx(1e5, rel=1e-5)
    torch.testing.assert_close(long.grad, torch.ones_like(long.grad), rtol=2e-3, atol=0)
    torch.testing.assert_close(short.grad, torch.full((10,), 1e-3))


# --- the learning rate ---


def test_clipping_without_gradients_and_what_is_refused():
    assert clip_by_global_norm([], 1.0) == 0 == clip_by_global_norm([weight(2)], 1.0)
    parameter = weight(2, 2)
    parameter.grad = torch.ones(2, 2)
    assert clip_by_global_norm(parameter, 1.0) == 2.0
    torch.testing.assert_close(parameter.grad, torch.full((2, 2), 0.5))
    for wrong in (-0.1, NAN):
        with pytest.raises(InputError, match="give 0 or more"):
            clip_by_global_norm([parameter], wrong)
        with pytest.raises(InputError, match="give 0 or more"):
            parameter_groups(nn.Linear(2, 2), wrong)
    for asked in ((-1, 10, 2, 1.0), (0, 10, -2, 1.0), (0, 10, 2, -1.0), (0, NAN, 2, 1.0)):
        with pytest.raises(InputError, match="numbers from 0 up"):
            warmup_cosine(*asked)


def test_equals_torchs_cosine_after_the_warmup():
    assert warmup_cosine(0, 100, 10, peak=1.0) == pytest.approx(0.1), "1/10 of the peak, not 0"
    assert warmup_cosine(9, 100, 10, peak=1.0) == 1.0
    assert warmup_cosine(0, math.inf, math.inf, peak=1.0) == 0.0, "the run's length is not known"
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=3.0)
    oracle = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.3)
    for step in range(50):
        ours = warmup_cosine(20 + step, total=70, warmup=20, peak=3.0, floor=0.3)
        assert ours == pytest.approx(oracle.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        oracle.step()


@given(
    total=st.integers(1, 300),
    part=st.floats(0, 0.99),
    peak=st.floats(1e-6, 1),
    ratio=st.floats(0, 1),
)
def test_rises_then_falls_within_its_bounds(total, part, peak, ratio):
    warmup, floor = part * total, ratio * peak
    rates = [warmup_cosine(step, total, warmup, peak, floor) for step in range(total + 3)]
    turn = math.ceil(warmup)
    assert all(a <= b for a, b in itertools.pairwise(rates[:turn]))
    assert all(a >= b - 1e-15 for a, b in itertools.pairwise(rates[turn:]))
    assert max(rates) <= peak * (1 + 1e-12)
    assert min(rates[turn:]) >= floor * (1 - 1e-12)
    assert rates[-1] == floor


@pytest.mark.parametrize("kind", KINDS)
def test_a_sparse_gradient_is_refused_wherever_gradients_are_read(kind):
    table = nn.Embedding(5, 4, sparse=True)
    table(torch.tensor([1, 1])).sum().backward()
    for use in (kind(table.parameters()).step, partial(clip_by_global_norm, [table.weight], 1.0)):
        with pytest.raises(InputError, match="sparse: leave sparse=True out"):
            use()
