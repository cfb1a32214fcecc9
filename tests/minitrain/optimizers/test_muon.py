"""Muon against torch's; singular values in the published band; shards; two ranks as one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.optimizers.muon import (
    CONVERGENT,
    DistributedMuon,
    Muon,
    balance,
    muon_groups,
    newton_schulz,
)
from minitrain.ranks.launch import launch

from .rules import copies, follow, twins

SHAPES = ((6, 5), (4, 9), (8, 8))


def test_it_is_torchs_bit_for_bit():
    ours, theirs = twins(torch.float32, SHAPES)
    options = {"lr": 0.02, "weight_decay": 0.3, "momentum": 0.9}
    first, oracle = Muon(ours, **options), torch.optim.Muon(theirs, **options)
    assert follow(ours, theirs, first, oracle, tolerance=0.0)
    assert sum(s["momentum_buffer"].nbytes for s in first.state.values()) == 4 * 130


def test_the_singular_values_are_in_the_published_band_and_the_vectors_stay():
    torch.manual_seed(0)
    g = torch.randn(64, 256, dtype=torch.float64)
    for steps in (5, 10):  # tuned: never converges, by design
        values = torch.linalg.svdvals(newton_schulz(g, steps))
        assert values.min() > 0.67 and values.max() < 1.14
    u, _, v = torch.linalg.svd(g, full_matrices=False)
    exact = newton_schulz(g, 30, CONVERGENT)
    torch.testing.assert_close(exact, u @ v, rtol=0, atol=1e-12)
    torch.testing.assert_close(newton_schulz(7 * g.T), newton_schulz(g).T)
    left = torch.linalg.qr(torch.randn(64, 64, dtype=torch.float64)).Q
    turned = newton_schulz(left @ g)  # equivariant
    torch.testing.assert_close(turned, left @ newton_schulz(g), rtol=0, atol=1e-12)


def test_a_shard_cannot_do_it_alone():
    torch.manual_seed(0)
    g = torch.randn(64, 64, dtype=torch.float64)
    whole = newton_schulz(g)
    shards = torch.cat([newton_schulz(part) for part in g.chunk(2)])
    assert (whole - shards).norm() / whole.norm() > 0.2


def alone(parts, steps, options):
    weights = [nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    optimizer = Muon(weights, **options)
    for step in range(steps):
        for i, weight in enumerate(weights):
            weight.grad = torch.stack([part[step][i] for part in parts]).sum(0) / len(parts)
        optimizer.step()
    return [w.detach() for w in weights]


def on_rank(group, parts, steps, options):
    weights = [nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    optimizer = DistributedMuon(weights, group, **options)
    for step in range(steps):
        for weight, grad in zip(weights, parts[group.rank][step]):
            weight.grad = grad.clone()
        optimizer.step()
    held = sum(s["momentum_buffer"].numel() for s in optimizer.state.values())
    return [w.detach() for w in weights], held


def test_two_ranks_go_where_one_process_goes_and_share_the_state():
    torch.manual_seed(0)
    parts = [[[torch.randn(s) for s in SHAPES] for _ in range(3)] for _ in range(2)]
    options = {"lr": 0.1, "weight_decay": 0.1}
    want = alone(parts, 3, options)
    found = launch(on_rank, parts, 3, options, ranks=2)
    for weights, _ in found:
        for mine, one in zip(weights, want):
            torch.testing.assert_close(mine, one, rtol=0, atol=0)
    assert sum(held for _, held in found) == sum(r * c for r, c in SHAPES)


def test_owners_are_balanced_and_others_are_refused():
    shapes = [(64, 64)] * 5 + [(64, 256)] * 2
    owners = balance(shapes, 3)
    loads = [
        sum(r * c * min(r, c) for (r, c), o in zip(shapes, owners) if o == n) for n in range(3)
    ]
    assert max(loads) <= sum(loads) / 3 + 64 * 64 * 64
    model = build(ModelConfig(61, 32, 2, 4, 2, 48))
    inside, others = muon_groups(model)
    assert len(inside) == 2 * 7 and len(inside) + len(others) == len(list(model.parameters()))
    assert model.embed.weight is others[0] and any(p is model.head.weight for p in others)
    Muon(inside)
    with pytest.raises(InputError, match="Muon moves matrices"):
        Muon(others)
    assert copies(inside[:1])[0].shape == inside[0].shape
