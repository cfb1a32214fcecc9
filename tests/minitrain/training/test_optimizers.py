from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.training.optimizers import NaiveAdamW, adamw, parameter_groups

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


@pytest.mark.parametrize("kind", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_naive_adamw_equals_torchs(kind):
    ours, theirs = twins()
    naive = NaiveAdamW(ours, **OPTIONS)
    oracle = torch.optim.AdamW(theirs, **OPTIONS, **kind)
    for step in range(12):
        give_gradients(ours, theirs, step)
        if step == 5:
            ours[1].grad = theirs[1].grad = None  # a parameter that one step does not use
        naive.step()
        oracle.step()
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_takes_over_from_torch_in_the_middle_of_a_run():
    ours, theirs = twins()
    oracle = torch.optim.AdamW(theirs, **OPTIONS)
    for step in range(3):
        give_gradients(ours, theirs, step)
        oracle.step()
    with torch.no_grad():
        for a, b in zip(ours, theirs):
            a.copy_(b)
    naive = NaiveAdamW(ours, **OPTIONS)
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
