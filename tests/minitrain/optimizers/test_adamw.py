"""Every rule against a library's or its paper's trajectory; what all rules have in common."""

from __future__ import annotations

import copy

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
from minitrain.optimizers.adamw import CACHED, AdamW, NaiveAdamW, adamw, state_bytes
from minitrain.optimizers.groups import parameter_groups
from minitrain.optimizers.lion import Lion
from minitrain.optimizers.sgd import SGD

from .rules import KINDS, copies, follow, give_gradients, twins

OPTIONS = {"lr": 0.02, "betas": (0.8, 0.93), "eps": 1e-6, "weight_decay": 0.1}


class Model(nn.Module):
    def __init__(self, tied: bool = False):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        if tied:
            self.head.weight = self.embed.weight


@pytest.mark.parametrize("rule", [NaiveAdamW, AdamW])
@pytest.mark.parametrize("kind", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_adamw_equals_torchs_and_takes_over_from_it_in_the_middle(rule, kind):
    ours, theirs = twins()
    oracle = torch.optim.AdamW(theirs, **OPTIONS, **kind)
    first = rule(ours, **OPTIONS)
    assert follow(ours, theirs, first, oracle, range(5))
    give_gradients(ours, theirs, 5)
    ours[1].grad = theirs[1].grad = None  # a parameter that one step does not use
    first.step(), oracle.step()
    assert follow(ours, theirs, first, oracle, range(6, 9))
    heir = rule(ours, **OPTIONS)  # the bias correction must go on from step 9, not from 0
    heir.load_state_dict(copy.deepcopy(oracle.state_dict()))
    assert follow(ours, theirs, heir, oracle, range(9, 12))


@pytest.mark.parametrize("wrong", ["coupled decay", "no bias correction", "eps inside the root"])
def test_plausible_mistakes_are_seen(wrong):
    ours, theirs = twins()
    naive, oracle = NaiveAdamW(ours, **OPTIONS), torch.optim.AdamW(theirs, **OPTIONS)
    if wrong == "coupled decay":
        naive = torch.optim.Adam(ours, **OPTIONS)
    same = follow(ours, theirs, naive, oracle, range(1))
    for state in naive.state.values():
        if wrong == "no bias correction":
            state["step"].fill_(10_000)
        if wrong == "eps inside the root":
            state["exp_avg_sq"].add_(OPTIONS["eps"])
    assert not (follow(ours, theirs, naive, oracle, range(1, 3), 1e-9) and same)


def test_only_matrices_decay():
    model = Model()
    decayed, kept = parameter_groups(model, 0.1)
    assert decayed["weight_decay"] == 0.1 and kept["weight_decay"] == 0.0
    assert {id(p) for p in decayed["params"]} == {id(model.inner.weight), id(model.head.weight)}
    others = (model.embed.weight, model.norm.weight, model.norm.bias, model.inner.bias)
    assert {id(p) for p in kept["params"]} == set(map(id, others))

    tied = Model(tied=True)
    decayed, kept = parameter_groups(tied, 0.1)
    assert [id(p) for p in decayed["params"]] == [id(tied.inner.weight)]
    assert sum(p is tied.embed.weight for p in kept["params"]) == 1, "follows the embedding, once"
    model.requires_grad_(False).inner.weight.requires_grad_(True)
    assert [len(group["params"]) for group in parameter_groups(model, 0.1)] == [1], "none frozen"


def test_adamw_steps_each_group_with_its_own_decay():
    model = Model()
    optimizer = adamw(model, lr=0.5, weight_decay=0.1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # without a gradient only the decay moves anything
    for name, parameter in model.named_parameters():
        factor = 1 - 0.5 * 0.1 if name in ("inner.weight", "head.weight") else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


# ---- what all rules have in common ----

RULES = {  # rule, options, bytes of state a parameter of a matrix of 64 x 128
    "NaiveAdamW": (NaiveAdamW, {"lr": 0.01}, 8.0),
    "AdamW": (AdamW, {"lr": 0.01}, 8.0),
    "Adam8bit": (Adam8bit, {"lr": 0.01}, 2 + 8 / 256),
    "Adafactor": (Adafactor, {"lr": 0.01}, 4 * (64 + 128) / (64 * 128)),
    "Lion": (Lion, {"lr": 0.001}, 4.0),
    "SGD": (SGD, {"lr": 0.1}, 4.0),
    "SGD without momentum": (SGD, {"lr": 0.1, "momentum": 0.0}, 0.0),
}


SHAPES = ((64, 128), (128,), (3, 5))


@pytest.mark.parametrize("name", RULES)
def test_it_goes_down_with_the_bytes_of_state_that_are_stated(name):
    rule, options, per_parameter = RULES[name]
    weight = nn.Parameter(torch.randn(64, 128))
    before, optimizer = weight.norm().item(), rule([weight], **options, weight_decay=0.0)
    for _ in range(20):
        weight.grad = 2 * weight.detach()
        optimizer.step()
    assert weight.norm() < 0.995 * before
    assert state_bytes(optimizer) == per_parameter * weight.numel()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_resumed_run_equals_the_uninterrupted_one_in_any_order(name, forgotten):
    rule, options, _ = RULES[name]
    weights, others = twins(torch.float32, SHAPES)
    optimizer = rule(weights, **options)
    assert follow(weights, others, optimizer, rule(others[::-1], **options), range(3), 0.0)
    resumed_weights = copies(weights)
    resumed = rule(resumed_weights, **options)
    if not forgotten:
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    same = follow(weights, resumed_weights, optimizer, resumed, range(3, 6), 0.0)
    for a, b in zip(optimizer.state.values(), resumed.state.values()):
        assert {k: v.dtype for k, v in a.items()} == {k: v.dtype for k, v in b.items()}
    assert same != (forgotten and name != "SGD without momentum")


@pytest.mark.parametrize("name", sorted(set(RULES) - {"SGD", "SGD without momentum"}))
def test_decay_is_decoupled_from_the_gradient(name):
    """Without a gradient a weight shrinks by lr · decay; through the gradient, it would be Adam's
    full step."""
    rule, options, _ = RULES[name]
    weight = nn.Parameter(torch.randn(64, 128))
    before = weight.detach().clone()
    weight.grad = torch.zeros_like(weight)
    rule([weight], **options, weight_decay=0.5).step()
    torch.testing.assert_close(weight.detach(), before * (1 - options["lr"] * 0.5))


def test_pieces_cover_tensors_that_are_larger_than_the_cache_and_views():
    shapes = [(CACHED + 7,), (3, 5), (2 * CACHED,)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    ours.append(nn.Parameter(torch.randn(40, 30).t()))  # not contiguous
    theirs = copies(ours)
    first, second = AdamW(ours, **OPTIONS), torch.optim.AdamW(theirs, **OPTIONS)
    assert follow(ours, theirs, first, second, range(3), 1e-5)


# Lion, SGD, Adafactor and 8-bit Adam: each against a library's or its paper's trajectory


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
