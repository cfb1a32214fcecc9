from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.optimizers.adafactor import Adafactor
from minitrain.optimizers.adam8bit import Adam8bit
from minitrain.optimizers.adamw import CACHED, AdamW, NaiveAdamW, adamw, state_bytes
from minitrain.optimizers.groups import parameter_groups
from minitrain.optimizers.lion import Lion
from minitrain.optimizers.sgd import SGD

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


def twins() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    shapes = [(3, 5), (4,), (2, 3, 2)]
    ours = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    return ours, [w.detach().clone().requires_grad_() for w in ours]


def give_gradients(ours, theirs, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for a, b in zip(ours, theirs):
        a.grad = torch.randn(a.shape, dtype=a.dtype, generator=generator)
        b.grad = a.grad.clone()


@pytest.mark.parametrize("rule", [NaiveAdamW, AdamW])
@pytest.mark.parametrize("kind", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_adamw_equals_torchs(rule, kind):
    ours, theirs = twins()
    naive = rule(ours, **OPTIONS)
    oracle = torch.optim.AdamW(theirs, **OPTIONS, **kind)
    for step in range(12):
        give_gradients(ours, theirs, step)
        if step == 5:
            ours[1].grad = theirs[1].grad = None  # a parameter that one step does not use
        naive.step()
        oracle.step()
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", [NaiveAdamW, AdamW])
def test_takes_over_from_torch_in_the_middle_of_a_run(rule):
    ours, theirs = twins()
    oracle = torch.optim.AdamW(theirs, **OPTIONS)
    for step in range(3):
        give_gradients(ours, theirs, step)
        oracle.step()
    with torch.no_grad():
        for a, b in zip(ours, theirs):
            a.copy_(b)
    naive = rule(ours, **OPTIONS)
    naive.load_state_dict(copy.deepcopy(oracle.state_dict()))
    for step in range(3, 6):  # the bias correction must go on from step 3, not from 0
        give_gradients(ours, theirs, step)
        naive.step()
        oracle.step()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wrong", ["coupled decay", "no bias correction", "eps inside the root"])
def test_plausible_mistakes_are_seen(wrong):
    ours, theirs = twins()
    naive, oracle = NaiveAdamW(ours, **OPTIONS), torch.optim.AdamW(theirs, **OPTIONS)
    if wrong == "coupled decay":
        naive = torch.optim.Adam(ours, **OPTIONS)
    for step in range(3):
        give_gradients(ours, theirs, step)
        naive.step()
        oracle.step()
        if wrong == "no bias correction":
            for state in naive.state.values():
                state["step"].fill_(10_000)
        if wrong == "eps inside the root":
            for state in naive.state.values():
                state["exp_avg_sq"].add_(OPTIONS["eps"])
    assert not all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(ours, theirs))


def test_only_matrices_decay():
    model = Model()
    decayed, kept = parameter_groups(model, 0.1)
    assert decayed["weight_decay"] == 0.1 and kept["weight_decay"] == 0.0
    assert {id(p) for p in decayed["params"]} == {id(model.inner.weight), id(model.head.weight)}
    assert {id(p) for p in kept["params"]} == {
        id(p) for p in (model.embed.weight, model.norm.weight, model.norm.bias, model.inner.bias)
    }


def test_a_tied_head_follows_the_embedding_and_comes_once():
    model = Model(tied=True)
    decayed, kept = parameter_groups(model, 0.1)
    assert [id(p) for p in decayed["params"]] == [id(model.inner.weight)]
    assert sum(p is model.embed.weight for p in kept["params"]) == 1


def test_frozen_parameters_are_left_out():
    model = Model()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.inner.weight.requires_grad_(True)
    assert [len(group["params"]) for group in parameter_groups(model, 0.1)] == [1]


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


def matrices(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(64, 128), (128,), (3, 5)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def gradients(weights: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.grad = weight.detach() + torch.randn(weight.shape, generator=generator)


@pytest.mark.parametrize("name", RULES)
def test_bytes_of_state_are_those_stated(name):
    rule, options, per_parameter = RULES[name]
    weight = nn.Parameter(torch.randn(64, 128))
    optimizer = rule([weight], **options)
    gradients([weight], 0)
    optimizer.step()
    assert state_bytes(optimizer) == per_parameter * weight.numel()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(name, forgotten):
    rule, options, _ = RULES[name]
    weights = matrices()
    optimizer = rule(weights, **options)
    for seed in range(3):
        gradients(weights, seed)
        optimizer.step()
    resumed_weights = [nn.Parameter(w.detach().clone()) for w in weights]
    resumed = rule(resumed_weights, **options)
    if not forgotten:
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for seed in range(3, 6):
        for pair, rule_ in ((weights, optimizer), (resumed_weights, resumed)):
            gradients(pair, seed)
            rule_.step()
    for a, b in zip(optimizer.state.values(), resumed.state.values()):
        assert {k: v.dtype for k, v in a.items()} == {k: v.dtype for k, v in b.items()}
    same = all(torch.equal(a, b) for a, b in zip(weights, resumed_weights))
    assert same != (forgotten and name != "SGD without momentum")


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_parameters_does_not_matter(name):
    rule, options, _ = RULES[name]
    forwards, backwards = matrices(), matrices()
    first, second = rule(forwards, **options), rule(backwards[::-1], **options)
    for seed in range(3):
        for weights in (forwards, backwards):
            gradients(weights, seed)
        first.step()
        second.step()
    assert all(torch.equal(a, b) for a, b in zip(forwards, backwards))


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


@pytest.mark.parametrize("name", RULES)
def test_it_goes_down(name):
    rule, options, _ = RULES[name]
    weight = nn.Parameter(torch.randn(64, 128))
    before, optimizer = weight.norm().item(), rule([weight], **options, weight_decay=0.0)
    for _ in range(20):
        weight.grad = 2 * weight.detach()
        optimizer.step()
    assert weight.norm() < 0.995 * before


def test_pieces_cover_tensors_that_are_larger_than_the_cache_and_views():
    shapes = [(CACHED + 7,), (3, 5), (2 * CACHED,)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    ours.append(nn.Parameter(torch.randn(40, 30).t()))  # not contiguous
    theirs = [nn.Parameter(w.detach().clone()) for w in ours]
    first, second = AdamW(ours, **OPTIONS), torch.optim.AdamW(theirs, **OPTIONS)
    for seed in range(3):
        give_gradients(ours, theirs, seed)
        first.step()
        second.step()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
