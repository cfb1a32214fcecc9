from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.measure.memory import MemoryLedger
from minitrain.optimizers.adamw import adamw, state_bytes
from minitrain.precision.master_weights import MasterWeights, nearest, stochastic_round
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.training.state import TrainState

from ..training.toys import Toy, ToyLoader, random_batch


def test_stochastic_rounding_is_right_on_average():
    draws = 40_000
    for value in (1.001, -0.3003, 1e-38, 3.1415926):
        x = torch.full((draws,), value)
        rounded = stochastic_round(x).float()
        step = rounded.max() - rounded.min()
        assert rounded.unique().numel() == 2 and (rounded - x).abs().max() < step
        error = rounded.double().mean() - x[0].double()
        assert error.abs() < 5 * step / (2 * draws**0.5)  # five standard deviations, at most
        assert (nearest(x).double().mean() - x[0].double()).abs() > 5 * step / (2 * draws**0.5)


def test_what_bfloat16_has_stays_and_what_is_not_finite_too():
    x = torch.randn(1000).bfloat16().float()
    assert torch.equal(stochastic_round(x).float(), x)
    odd = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0])
    for _ in range(20):
        assert stochastic_round(odd).tolist()[:2] == odd.tolist()[:2]
        assert stochastic_round(odd)[2].isnan() and stochastic_round(odd)[3] == 0


# ---- the step that vanishes ----


def moved(wrap, steps: int = 400, lr: float = 1e-3) -> float:
    """How far the mean of weights near 1 goes down, under a gradient that is always 1."""
    weight = nn.Parameter(torch.ones(512, dtype=torch.bfloat16))
    optimizer = wrap(torch.optim.SGD([weight], lr=lr))
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return 1 - weight.float().mean().item()


def test_a_small_step_stalls_in_bfloat16_and_masters_keep_it():
    assert torch.finfo(torch.bfloat16).eps / 2 > 1e-3  # lr · update is under half a step down
    assert moved(lambda plain: plain) == 0.0
    assert moved(MasterWeights) == pytest.approx(0.4, abs=2**-8)


def narrow_state(wrap, seed: int = 0) -> TrainState:
    model = Toy(seed).bfloat16()
    return TrainState(model, wrap(torch.optim.AdamW(model.parameters(), lr=1e-3)), ToyLoader())


def step(state: TrainState, seed: int) -> None:
    batch = random_batch(4, seed=seed)
    logits = state.model(batch.tokens).float().flatten(0, 1)
    nn.functional.cross_entropy(logits, batch.targets.flatten(), ignore_index=-100).backward()
    state.optimizer.step()
    state.optimizer.zero_grad()


def test_masters_follow_the_optimizer_on_float32_weights():
    state, oracle = narrow_state(MasterWeights), Toy(0).bfloat16().float()
    theirs = torch.optim.AdamW(oracle.parameters(), lr=1e-3)
    for seed in range(8):
        batch = random_batch(4, seed=seed)
        logits = state.model(batch.tokens).float().flatten(0, 1)
        nn.functional.cross_entropy(logits, batch.targets.flatten(), ignore_index=-100).backward()
        for a, b in zip(state.model.parameters(), oracle.parameters()):
            b.grad = a.grad.float()
        state.optimizer.step()
        theirs.step()
        for master, weight, b in zip(state.optimizer.masters, state.model.parameters(), oracle.parameters()):  # fmt: skip
            assert torch.equal(master, b) and torch.equal(weight, b.bfloat16())


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path):
    state = narrow_state(MasterWeights)
    for seed in range(6):
        step(state, seed)
    state.step = 6
    save_checkpoint(tmp_path, state)
    resumed = narrow_state(MasterWeights, seed=3)
    load_checkpoint(tmp_path, resumed)
    for seed in range(6, 20):
        step(state, seed)
        step(resumed, seed)
    pairs = zip(state.model.parameters(), resumed.model.parameters())
    assert all(torch.equal(a, b) for a, b in pairs)


def test_bytes_a_parameter():
    model = nn.Linear(64, 32, bias=False).bfloat16()
    optimizer = MasterWeights(torch.optim.AdamW(model.parameters(), lr=1e-3))
    with MemoryLedger(model, optimizer) as ledger:
        model(torch.ones(2, 64, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert state_bytes(optimizer) == 12 * 2048
    assert ledger.now["parameters"] == 2 * 2048
    assert ledger.now["optimizer"] - state_bytes(optimizer) <= 16  # the count of steps


def test_an_optimizer_that_has_begun_is_refused():
    model = Toy()
    optimizer = adamw(model, lr=0.1)
    model(random_batch(2).tokens).sum().backward()
    optimizer.step()
    with pytest.raises(InputError, match="fresh"):
        MasterWeights(optimizer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_that_are_loaded_later_stay(dtype):
    model, other = Toy(0).to(dtype), Toy(5).to(dtype)
    optimizer = MasterWeights(torch.optim.SGD(model.parameters(), lr=1e-4))
    step(TrainState(model, optimizer, ToyLoader()), 0)
    model.load_state_dict(other.state_dict())
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    saved = optimizer.state_dict()
    optimizer.step()
    for index, (a, b) in enumerate(zip(model.parameters(), other.parameters())):
        master = saved["state"][index]["master"]
        assert torch.equal(a, b) and torch.equal(master.to(dtype), b)


def test_a_row_that_is_written_leaves_the_masters_of_the_others():
    weight = nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16))
    optimizer = MasterWeights(torch.optim.SGD([weight], lr=1e-3))
    for _ in range(2):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    with torch.no_grad():
        weight[1] = 5.0
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    expected = torch.tensor([0.997, 4.999, 0.997]).unsqueeze(1).expand(3, 2)
    torch.testing.assert_close(optimizer.masters[0].detach(), expected)


def test_state_without_masters_is_named():
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = MasterWeights(torch.optim.AdamW([weight]))
    with pytest.raises(InputError, match="has no masters"):
        optimizer.load_state_dict(torch.optim.AdamW([weight]).state_dict())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int32])
def test_rounding_takes_numbers_of_any_type(dtype):
    x = torch.tensor([3.0]).to(dtype)
    assert torch.equal(stochastic_round(x), torch.tensor([3.0], dtype=torch.bfloat16))
