from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.norm import rms_norm
from minitrain.model.rope import rotation
from minitrain.model.transformer import build
from minitrain.precision.emulated import EmulatedLinear, emulate, rounded
from minitrain.precision.loss_scaling import LossScaler
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.training.loop import TrainConfig, train, train_step
from minitrain.training.loss import token_weighted_loss

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
    weights = [
        nn.Parameter(torch.zeros(4)),
        nn.Parameter(torch.zeros(2, 2)),
        nn.Parameter(torch.zeros(())),
    ]
    weights[0].grad = torch.full((4,), 3e38)
    weights[1].grad = torch.full((2, 2), -3e38)  # the last one has none
    scaler = LossScaler(scale=1.0)
    assert scaler.unscale(iter(weights)) is True
    assert scaler.unscale(weights[2:]) is True, "a rank without gradients takes part"
    weights[1].grad[0, 1] = float("nan")
    assert scaler.unscale(weights) is False


def test_defaults_are_torchs():
    torchs = torch.amp.GradScaler("cpu")
    torchs.scale(torch.ones(1))
    ours = LossScaler()
    assert ours.scale == torchs.get_scale() == 2.0**16
    assert ours.growth == torchs.get_growth_factor()
    assert ours.backoff == torchs.get_backoff_factor()
    assert ours.interval == torchs.get_growth_interval() == 2000


@pytest.mark.parametrize(
    "wrong", [{"scale": 0.0}, {"growth": 1.0}, {"backoff": 1.0}, {"interval": 0}]
)
def test_impossible_scalers_are_named(wrong):
    with pytest.raises(InputError, match="needs scale > 0"):
        LossScaler(**wrong)


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
    wrong = Toy()  # plausible and wrong: gradients are clipped while they are 256 times too long
    optimizer = torch.optim.SGD(wrong.parameters(), lr=1.0)
    batch = random_batch(4)
    tokens = (batch.targets >= 0).sum()
    (token_weighted_loss(wrong(batch.tokens), batch.targets, tokens) * 2**8).backward()
    nn.utils.clip_grad_norm_(wrong.parameters(), 0.1)
    LossScaler(2.0**8).unscale(wrong.parameters())
    optimizer.step()
    assert not torch.allclose(wrong.head.weight, plain.head.weight, rtol=1e-4)


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


def test_an_overflow_without_a_scaler_ends_the_run():
    state = toy_state()
    overflowing(state.model, {1})
    with pytest.raises(InputError, match="diverged"):
        train(state.model, state.loader, TrainConfig(steps=4), state=state)


def test_endless_overflow_is_named_once_no_scale_is_small_enough():
    state = toy_state()
    state.scaler = LossScaler()
    overflowing(state.model, set(range(1, 1000)))
    with pytest.raises(InputError, match="diverged"):
        train(state.model, state.loader, TrainConfig(steps=4), state=state)
    assert state.loader.place == 31  # from 2^16 to under 2^-14


def test_no_scale_hides_a_loss_that_is_not_finite():
    state = toy_state()
    state.scaler = LossScaler()
    with torch.no_grad():
        state.model.head.weight.fill_(INFINITE)
    with pytest.raises(InputError, match="diverged"):
        train(state.model, state.loader, TrainConfig(steps=2), state=state)


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


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_scaler_is_in_the_checkpoint(tmp_path, forgotten):
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
    if forgotten:
        resumed.scaler = LossScaler(interval=4)
    assert (run(resumed, 9) == expected) != forgotten


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


SHARE = 2.0**-18  # of a step's tokens: 16 million, as Llama 3 has, to the 64 of this microbatch


def fp16_loss(scaler: LossScaler, half: bool = True) -> float:
    """The last loss of a small model, whose microbatch stands for all of a large batch."""
    torch.manual_seed(0)
    net = build(ModelConfig(64, 32, layers=1, heads=2, kv_heads=2, ffn_size=48))
    net = emulate(net) if half else net
    tokens = torch.randint(64, (4, 17))
    tokens[:, 1::2] = tokens[:, 0:-1:2]
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(40):
        loss = F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        (loss * SHARE * scaler.scale).backward()
        assert scaler.unscale(net.parameters())
        for parameter in net.parameters():
            parameter.grad /= SHARE  # in float32: the sum over all microbatches
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def test_fp16_fails_without_scaling_and_learns_with_it():
    reference = fp16_loss(LossScaler(1.0), half=False)
    assert reference < 0.5  # from ln 64 = 4.16
    assert fp16_loss(LossScaler(1.0)) > 2.0
    assert fp16_loss(LossScaler(2.0**16)) == pytest.approx(reference, abs=0.05)


# ---- BF16: what must stay in float32 ----


def test_norm_loss_and_angles_are_computed_in_float32_in_a_bfloat16_model():
    torch.manual_seed(0)
    x, weight = (4 * torch.randn(3, 64)).bfloat16(), torch.ones(64, dtype=torch.bfloat16)
    assert torch.equal(rms_norm(x, weight, 1e-5), rms_norm(x.float(), weight.float(), 1e-5).bfloat16())  # fmt: skip
    r = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    assert not torch.equal(x * r, rms_norm(x, weight, 1e-5))
    config, places = ModelConfig(64, 32, 1, 2, 2, 48), torch.arange(1000, 1032)
    narrow, wide = (rotation(config, places, dtype) for dtype in (torch.bfloat16, torch.float32))
    for a, b in zip(narrow, wide):
        torch.testing.assert_close(a.float(), b, rtol=0, atol=2**-8)
    assert math.cos(1003.0) != pytest.approx(float(torch.tensor(1003.0).bfloat16().cos()), abs=0.1)
    logits, targets = torch.randn(2, 5, 64).bfloat16(), torch.randint(64, (2, 5))
    expected = token_weighted_loss(logits.float(), targets, 10)
    assert token_weighted_loss(logits, targets, 10) == expected
    assert F.cross_entropy(logits.flatten(0, 1), targets.flatten()) != expected
