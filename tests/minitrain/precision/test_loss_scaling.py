from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.precision.loss_scaling import EmulatedLinear, LossScaler, rounded
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.training.loop import TrainConfig, train, train_step

from ..training.toys import Toy, random_batch, toy_state

INFINITE = float("inf")


# ---- the scale ----


def test_the_scale_follows_torchs_grad_scaler():
    ours = LossScaler(interval=3)
    torchs = torch.amp.GradScaler("cpu", growth_interval=3)
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    finite_steps = torch.rand(200, generator=torch.Generator().manual_seed(0)) < 0.8
    for finite in finite_steps.tolist():
        torchs.scale(weight.sum()).backward()
        if not finite:
            weight.grad[1] = INFINITE
        mine = copy.deepcopy(weight)
        mine.grad = weight.grad.clone()
        torchs.step(optimizer)
        torchs.update()
        assert ours.unscale([mine]) == finite
        assert not finite or torch.equal(mine.grad, torch.ones(3))
        ours.update(finite)
        assert ours.scale == torchs.get_scale()
        optimizer.zero_grad()


def test_finite_gradients_are_finite_though_their_sum_is_not():
    weights = [nn.Parameter(torch.zeros(shape)) for shape in ((4,), (2, 2), ())]
    weights[0].grad = torch.full((4,), 3e38)
    weights[1].grad = torch.full((2, 2), -3e38)  # the last one has none
    scaler = LossScaler(scale=1.0)
    assert scaler.unscale(iter(weights)) is True
    assert scaler.unscale(weights[2:]) is True, "a rank without gradients takes part"
    weights[1].grad[0, 1] = float("nan")
    assert scaler.unscale(weights) is False


# ---- the step ----


def overflowing(model: nn.Module, calls: set[int]) -> None:
    """The gradients of these backwards, counted from 1, have an inf."""
    count = []

    def spoil(gradient):
        count.append(1)
        return gradient + INFINITE if len(count) in calls else gradient

    model.head.weight.register_hook(spoil)


def test_a_scaled_step_is_the_unscaled_one_and_clips_after_unscaling():
    plain, scaled = Toy(), Toy()
    for model, scaler in ((plain, None), (scaled, LossScaler(2.0**8))):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        train_step(model, optimizer, [random_batch(4)], clip=0.1, scaler=scaler)
    for a, b in zip(plain.parameters(), scaled.parameters()):
        torch.testing.assert_close(a, b)


def test_a_skipped_step_is_none():
    """Overflows at steps 1 (the very first) and 3: weights, Adam's count and the schedule stay."""
    state = toy_state()
    state.scaler = LossScaler(interval=1000)
    overflowing(state.model, {1, 3})
    rates = []
    before = state.model.head.weight.detach().clone()
    config = TrainConfig(steps=4, lr=0.02, warmup=0.5)
    result = train(state.model, state.loader, config, state=state, callbacks=[rates.append])
    assert result.skipped == 2 and state.step == 4 and state.loader.place == 6
    assert [record.lr for record in rates] == pytest.approx([0.01, 0.02, 0.02, 0.01])
    assert {int(s["step"]) for s in state.optimizer.state.values()} == {4}
    assert state.scaler.scale == 2.0**14 and state.scaler.finite_steps == 3
    assert not torch.equal(before, state.model.head.weight)
    assert state.model.head.weight.isfinite().all()


@pytest.mark.parametrize("case", ["no scaler", "endless overflow", "the loss"])
def test_what_no_scale_mends_ends_the_run(case):
    state = toy_state()
    state.scaler = None if case == "no scaler" else LossScaler()
    overflowing(state.model, set(range(1, 1000)))
    if case == "the loss":
        torch.nn.init.constant_(state.model.head.weight, INFINITE)
    with pytest.raises(InputError, match="diverged"):
        train(state.model, state.loader, TrainConfig(steps=4), state=state)
    if case == "endless overflow":
        assert state.loader.place == 31  # from 2^16 to under 2^-14


def test_impossible_scalers_and_other_states_are_refused():
    for wrong in ({"scale": 0.0}, {"growth": 1.0}, {"backoff": 1.0}, {"interval": 0}):
        with pytest.raises(InputError, match="needs scale > 0"):
            LossScaler(**wrong)
    scaler = LossScaler()
    with pytest.raises(InputError, match="growth_factor"):
        scaler.load_state_dict(torch.amp.GradScaler("cpu").state_dict())
    with pytest.raises(InputError, match="scale > 0"):
        scaler.load_state_dict({**scaler.state_dict(), "scale": INFINITE})
    assert scaler == LossScaler() and scaler.unscale([])


def sharded_step(group):
    """Each rank has gradients of its own, as under ZeRO; only rank 1's have an inf."""
    scaler, weight = LossScaler(), nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), INFINITE if group.rank == 1 else 1.0)
    agreed = scaler.unscale([weight], group.all_reduce)
    scaler.update(agreed)
    weight.grad = torch.full((2,), INFINITE if group.rank == 1 else 1.0)
    return agreed, LossScaler().unscale([weight]), scaler.scale


def test_an_inf_on_one_rank_skips_on_all():
    launch = pytest.importorskip("minitrain.ranks.launch").launch
    results = list(launch(sharded_step, ranks=2))
    assert [agreed for agreed, _, _ in results] == [False, False]
    assert [alone for _, alone, _ in results] == [True, False]  # without agreement they part
    assert {scale for _, _, scale in results} == {2.0**15}


def test_the_scaler_is_in_the_checkpoint(tmp_path):
    def run(state, steps):
        config = TrainConfig(steps=9, lr=0.02)
        train(state.model, state.loader, config, state=state, stop=lambda: state.step >= steps)
        return state.scaler.scale, state.scaler.finite_steps

    def fresh(seed):
        state = toy_state(seed=seed)
        state.scaler = LossScaler(interval=4)
        return state

    expected = run(fresh(0), 9)
    half = fresh(0)
    run(half, 6)
    save_checkpoint(tmp_path, half)
    resumed = fresh(5)
    load_checkpoint(tmp_path, resumed)
    assert run(resumed, 9) == expected


# ---- FP16, emulated ----


def test_emulated_half_equals_real_half():
    torch.manual_seed(0)
    linear = nn.Linear(24, 10)
    emulated, real = EmulatedLinear(linear, torch.float16), copy.deepcopy(linear).half()
    x = torch.randn(6, 24)
    x_real = x.half().requires_grad_()
    x = x.requires_grad_()
    gradient = torch.randn(6, 10)
    emulated(x).backward(gradient)
    real(x_real).backward(gradient.half())
    for a, b in ((x.grad, x_real.grad), (linear.weight.grad, real.weight.grad)):
        torch.testing.assert_close(a, b.float(), rtol=2e-3, atol=1e-3)
        assert torch.equal(a, a.half().float()), "every number is one that FP16 has"
    assert linear.weight.dtype == torch.float32


def test_rounding_overflows_and_underflows_as_the_type_does():
    x = torch.tensor([7e4, 1e-8, 1.0 + 2**-12], requires_grad=True)
    y = rounded(x, torch.float16)
    assert y.tolist() == [INFINITE, 0.0, 1.0]
    y.backward(torch.tensor([1e-8, 7e4, 2**-24]))
    assert x.grad.tolist() == [0.0, INFINITE, 2**-24]


def test_a_sparse_gradient_is_refused():
    table = nn.Embedding(5, 4, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(InputError, match="leave sparse=True out"):
        LossScaler().unscale(table.parameters())
