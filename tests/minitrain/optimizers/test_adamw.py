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

from .rules import copies, follow, give_gradients, twins

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
