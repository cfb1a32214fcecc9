"""Lion, SGD, Adafactor and 8-bit Adam: each against a library's or its paper's trajectory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from minitrain.optimizers.adafactor import Adafactor, second_moment
from minitrain.optimizers.adam8bit import (
    BLOCK,
    Adam8bit,
    dequantize_blocks,
    dynamic_map,
    quantize_blocks,
)
from minitrain.optimizers.adamw import NaiveAdamW
from minitrain.optimizers.lion import Lion
from minitrain.optimizers.sgd import SGD

from .rules import KINDS, follow, twins

# ---- SGD ----


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_equals_torchs(momentum, nesterov):
    options = {"lr": 0.05, "momentum": momentum, "weight_decay": 0.1, "nesterov": nesterov}
    ours, theirs = twins()
    assert follow(ours, theirs, SGD(ours, **options), torch.optim.SGD(theirs, **options))
    ours, theirs = twins()
    wrong = torch.optim.SGD(theirs, **{**options, "momentum": momentum + 0.01})
    assert not follow(ours, theirs, SGD(ours, **options), wrong)


# ---- Lion ----


def lion_by_the_paper(weight, gradients, lr, beta1, beta2, decay, order="paper"):
    """Chen et al. 2023, algorithm 2, in NumPy."""
    weight, momentum = weight.copy(), np.zeros_like(weight)
    for gradient in gradients:
        if order == "momentum first":
            momentum = beta2 * momentum + (1 - beta2) * gradient
        update = beta1 * momentum + (1 - beta1) * gradient
        weight = weight - lr * (np.sign(update) + decay * weight)
        if order == "paper":
            momentum = beta2 * momentum + (1 - beta2) * gradient
    return weight


def test_lion_follows_its_papers_algorithm():
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=(6, 5)), random.normal(size=(30, 6, 5))
    weight = nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = Lion([weight], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    for gradient in gradients:
        weight.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    expected = lion_by_the_paper(start, gradients, 0.01, 0.9, 0.99, 0.1)
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-12, atol=1e-12)
    wrong = lion_by_the_paper(start, gradients, 0.01, 0.9, 0.99, 0.1, "momentum first")
    assert not np.allclose(weight.detach().numpy(), wrong)


def test_a_tie_of_signs_moves_nothing_but_the_decay():
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.tensor([0.0, 2.0, -1e-30])
    Lion([weight], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(weight.detach(), torch.tensor([0.95, 0.85, 1.05]))


# ---- Adafactor ----


def test_adafactor_equals_torchs():
    ours, theirs = twins()
    options = {"lr": 0.3, "weight_decay": 0.05}
    assert follow(ours, theirs, Adafactor(ours, **options), torch.optim.Adafactor(theirs, **options))  # fmt: skip
    ours, theirs = twins()
    wrong = Adafactor(ours, **options, clip=2.0)
    assert not follow(ours, theirs, wrong, torch.optim.Adafactor(theirs, **options))


def test_adafactor_equals_transformers():
    optimization = pytest.importorskip("transformers.optimization")
    ours, theirs = twins(torch.float32)
    # Its relative rate is min(0.01, 1/sqrt(t)); the rate and the size of the weights are its own.
    peer = optimization.Adafactor(theirs, scale_parameter=True, relative_step=True)
    assert follow(ours, theirs, Adafactor(ours, lr=0.01), peer, tolerance=1e-5)


def test_factored_is_exact_where_the_squares_have_rank_one_and_only_there():
    rows, columns = torch.rand(6, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    for rank_one, grad in (
        (True, torch.outer(rows, columns).sqrt()),
        (False, torch.eye(6, 5, dtype=torch.float64) + 0.1),
    ):
        state = {"rows": torch.zeros(6, dtype=torch.float64), "columns": torch.zeros(5, dtype=torch.float64)}  # fmt: skip
        factored = second_moment(grad, state, 1.0, 1e-30)
        assert torch.allclose(factored, grad.square(), rtol=1e-12) == rank_one
        torch.testing.assert_close(factored.sum(), grad.square().sum())  # the mass is kept


# ---- 8-bit Adam ----


def test_the_map_is_that_of_the_paper():
    signed, unsigned = dynamic_map(True), dynamic_map(False)
    for levels in (signed, unsigned):
        assert levels.shape == (256,) and (levels.diff() > 0).all() and levels[-1] == 1
    assert (signed == 0).sum() == 1 and unsigned[0] == 0
    positive = signed[signed > 0]
    assert torch.equal(-signed[signed < 0].flip(0), positive[:-1])
    for decade in range(7):  # each further zero costs a bit of fraction
        inside = (positive > 10.0 ** (-decade - 1)) & (positive < 10.0**-decade)
        assert inside.sum() == 2 ** (6 - decade)
    assert unsigned[1] == pytest.approx(3.25e-7)


def test_the_map_is_bitsandbytes():
    functional = pytest.importorskip("bitsandbytes.functional")
    for signed in (True, False):
        torch.testing.assert_close(dynamic_map(signed), functional.create_dynamic_map(signed))


@pytest.mark.parametrize("signed", [True, False])
def test_each_number_gets_the_nearest_level_of_its_block(signed):
    x = torch.randn(5, 130) * torch.logspace(-3, 1, 130)
    x = x if signed else x.square()
    codes, scale = quantize_blocks(x, signed)
    assert codes.dtype == torch.uint8 and codes.shape == (3, BLOCK) and scale.shape == (3, 1)
    found = dequantize_blocks(codes, scale, signed, x)
    levels = dynamic_map(signed) * scale.repeat_interleave(BLOCK, 0)[: x.numel()]  # (P, 256)
    distance = (x.reshape(-1, 1) - levels).abs().min(dim=1).values
    close = (found - x).abs().flatten()
    low = levels[:, 1 if not signed else 128]
    assert torch.equal(close[x.flatten().abs() > low], distance[x.flatten().abs() > low])


def test_an_outlier_spoils_its_own_block_only():
    x = torch.randn(3 * BLOCK)
    planted = x.clone()
    planted[BLOCK] = 1e6
    a, b = (dequantize_blocks(*quantize_blocks(y, True), True, y) for y in (x, planted))
    changed = (a != b).view(3, BLOCK).any(dim=1)
    assert changed.tolist() == [False, True, False]


def test_a_second_moment_above_zero_never_becomes_zero():
    square = torch.cat([torch.tensor([1.0, 0.0]), torch.logspace(-30, -1, BLOCK - 2)])
    codes, scale = quantize_blocks(square, signed=False)
    found = dequantize_blocks(codes, scale, False, square)
    assert (found[2:] > 0).all() and found[1] == 0
    linear = (square / square.max() * 255).round()  # plausible and wrong: equal steps
    nearest = torch.bucketize(square, (dynamic_map(False)[1:] + dynamic_map(False)[:-1]) / 2)
    assert (linear[2:] == 0).any() and (nearest[2:] == 0).any()


def distance(first: nn.Parameter, second: nn.Parameter, start: torch.Tensor) -> float:
    """How far apart two runs are, as a part of the way."""
    return ((first - second).norm() / (second - start).norm()).item()


def run(optimizer, weight: nn.Parameter, steps: int = 60) -> nn.Parameter:
    generator = torch.Generator().manual_seed(1)
    sizes = torch.logspace(-2, 0, weight.shape[1])  # gradients of unequal sizes in each block
    for _ in range(steps):
        noise = torch.randn(weight.shape, generator=generator)
        weight.grad = sizes * (torch.sign(weight.detach()) + 0.5 * noise)
        optimizer.step()
    return weight


def test_8_bit_adam_stays_within_5_percent_of_float32s_way():
    start = torch.randn(32, 256, generator=torch.Generator().manual_seed(0))
    options = {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1}
    ours, exact = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    run(Adam8bit([ours], **options), ours)
    run(NaiveAdamW([exact], **options), exact)
    assert 1e-4 < distance(ours, exact, start) < 0.05
    small = [nn.Parameter(start[:2].clone()) for _ in range(2)]  # stays in float32
    run(Adam8bit([small[0]], **options), small[0])
    run(NaiveAdamW([small[1]], **options), small[1])
    torch.testing.assert_close(small[0], small[1])


def test_8_bit_adam_is_nearer_than_bitsandbytes():
    bitsandbytes = pytest.importorskip("bitsandbytes")
    start = torch.randn(32, 256, generator=torch.Generator().manual_seed(0))
    options = {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1}
    weights = [nn.Parameter(start.clone()) for _ in range(3)]
    run(Adam8bit([weights[0]], **options), weights[0])
    run(bitsandbytes.optim.AdamW8bit([weights[1]], **options), weights[1])
    run(NaiveAdamW([weights[2]], **options), weights[2])
    ours, theirs = (distance(w, weights[2], start) for w in weights[:2])
    assert ours < theirs


@pytest.mark.parametrize("kind", KINDS)
def test_torchs_schedulers_take_every_optimizer(kind):
    weight = nn.Parameter(torch.ones(4))
    optimizer = kind([weight], lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step else 1.0)
    moved = []
    for _ in range(2):
        before = weight.detach().clone()
        weight.square().sum().backward()
        optimizer.step()
        schedule.step()
        moved.append(not torch.equal(weight, before))
    assert moved == [True, False], "the second rate is 0"
