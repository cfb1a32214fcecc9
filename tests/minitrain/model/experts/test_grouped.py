"""Rows by expert and back; the experts' matmuls and their own backward, against a loop and autograd."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.measure.flops import counted_flops
from minitrain.measure.memory import MemoryLedger
from minitrain.model.experts.dispatch import collect, combine, dispatch, make_plan, places
from minitrain.model.experts.grouped import Experts, grouped_swiglu, kernel_runs, looped_swiglu

COUNTS = [torch.tensor(c) for c in ([3, 0, 9, 4], [0, 0, 0, 16])]


def rows_and_experts(dtype=torch.float64, width=8, inner=12):
    torch.manual_seed(0)
    return torch.randn(16, width, dtype=dtype), Experts(4, width, inner).to(dtype)


def one_by_one(rows, experts, counts):
    """Autograd's own backward, segment by segment."""
    weights = (experts.gate, experts.up, experts.down)
    segments = zip(rows.split(counts.tolist()), *weights)
    return torch.cat([(F.silu(rows @ g) * (rows @ u)) @ d for rows, g, u, d in segments])


@pytest.mark.parametrize("counts", COUNTS)
def test_equals_the_loop_with_every_gradient(counts):
    rows, experts = rows_and_experts()
    inputs = [rows.requires_grad_(), *experts.parameters()]
    ours, theirs = experts(rows, counts), one_by_one(rows, experts, counts)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    slope = torch.randn_like(ours)
    mine, other = (torch.autograd.grad(out, inputs, slope) for out in (ours, theirs))
    torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_expert_without_rows_gets_zeros_and_not_none(dtype):
    rows, experts = rows_and_experts(dtype)
    experts(rows, COUNTS[0]).sum().backward()
    for weight in experts.parameters():
        assert weight.grad[1].abs().max() == 0 and weight.grad[2].abs().max() > 0
    none = experts(rows[:0].requires_grad_(), torch.zeros(4, dtype=torch.int64))
    none.sum().backward()
    assert none.shape == (0, 8)


@pytest.mark.skipif(not kernel_runs(torch.float32, "cpu"), reason="needs torch 2.9 or newer")
@pytest.mark.parametrize("counts", COUNTS)
def test_torchs_kernel_and_the_loop_agree_with_every_gradient(counts):
    rows, experts = rows_and_experts(torch.float32)
    inputs, slope = [rows.requires_grad_(), *experts.parameters()], torch.randn(16, 8)
    weights = (experts.gate, experts.up, experts.down)
    kernel, loop = (swiglu(rows, *weights, counts) for swiglu in (grouped_swiglu, looped_swiglu))
    torch.testing.assert_close(kernel, loop, rtol=1e-5, atol=1e-5)
    mine, other = (torch.autograd.grad(out, inputs, slope) for out in (kernel, loop))
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    flops = 3 * 3 * 2 * 16 * 8 * 12
    run = partial(grouped_swiglu, rows, *weights, counts)
    assert counted_flops(lambda: run().backward(slope)) == flops


def test_flops_are_three_matmuls_and_twice_that_backward():
    rows, experts = rows_and_experts()
    forward = 3 * 2 * 16 * 8 * 12
    rows.requires_grad_()
    assert counted_flops(lambda: experts(rows, COUNTS[0])) == forward
    assert counted_flops(lambda: experts(rows, COUNTS[0]).sum().backward()) == 3 * forward


def test_what_is_kept_for_backward():
    rows, experts = rows_and_experts()
    with MemoryLedger(experts) as ledger:
        out = experts(rows, COUNTS[0])
        kept = ledger.now["activations"]
    with MemoryLedger(experts) as ledger:
        plain = one_by_one(rows, experts, COUNTS[0])
        plainly = ledger.now["activations"]
    assert kept == 8 * 16 * (8 + 2 * 12)  # x, g and u
    assert plainly >= 8 * 16 * (8 + 4 * 12) > kept
    assert out.shape == plain.shape


# Rows by expert and back: nothing lost, the right ones dropped, each operator its partner's adjoint


FEW = settings(max_examples=30, deadline=None)
SIZES = {"m": st.integers(1, 12), "k": st.integers(1, 3), "count": st.integers(3, 9)}


def choose(m: int, k: int, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Different experts for each token, and probabilities among which some are equal."""
    generator = torch.Generator().manual_seed(seed)
    experts = torch.rand(m, count, generator=generator).topk(k).indices
    return experts, torch.randint(1, 5, (m, k), generator=generator) / 5


@FEW
@given(**SIZES, seed=st.integers(0, 99))
def test_dropless_loses_nothing_and_comes_back(m, k, count, seed):
    experts, _ = choose(m, k, count, seed)
    plan = make_plan(experts, count)
    assert plan.counts.sum() == m * k and plan.kept.all() and plan.dropped == 0
    assert torch.equal(experts.flatten()[plan.order], experts.flatten().sort().values)
    assert torch.equal(plan.order[plan.slots.flatten()], torch.arange(m * k)), "the inverse"
    x = torch.randn(m, 4, dtype=torch.float64)
    torch.testing.assert_close(collect(dispatch(x, plan), plan), k * x)
    torch.testing.assert_close(combine(dispatch(x, plan), torch.full((m, k), 1 / k), plan), x)


def kept_by_priority(experts, p, count, capacity) -> set[tuple[int, int]]:
    """Expert by expert: its choices, the most probable first, of equals the earlier token."""
    kept = set()
    for expert in range(count):
        asking = [(-p[m, k].item(), m, k) for m, k in (experts == expert).nonzero().tolist()]
        kept |= {(m, k) for _, m, k in sorted(asking)[:capacity]}
    return kept


def as_set(kept: torch.Tensor) -> set[tuple[int, int]]:
    return {tuple(place) for place in kept.nonzero().tolist()}


@FEW
@given(**SIZES, seed=st.integers(0, 99), capacity=st.integers(1, 4))
def test_a_capacity_keeps_the_most_probable(m, k, count, seed, capacity):
    experts, p = choose(m, k, count, seed)
    plan = make_plan(experts, count, capacity, p)
    load = experts.flatten().bincount(minlength=count)
    assert as_set(plan.kept) == kept_by_priority(experts, p, count, capacity)
    assert torch.equal(plan.counts, load.clamp(max=capacity))
    assert plan.dropped == (load - capacity).clamp(min=0).sum() == m * k - plan.counts.sum()
    assert (experts.flatten()[plan.order].diff() >= 0).all()


def test_a_dropped_choice_adds_nothing_and_the_others_keep_their_weights():
    experts, p = torch.tensor([[0, 1], [0, 2]]), torch.tensor([[0.6, 0.4], [0.7, 0.3]])
    plan = make_plan(experts, 3, 1, p)
    rows = torch.ones(3, 1)
    torch.testing.assert_close(combine(rows, p, plan), torch.tensor([[0.4], [1.0]]))


@pytest.mark.parametrize("capacity", [None, 2])
def test_gradients(capacity):
    torch.manual_seed(0)
    experts, p = choose(5, 2, 4, 0)
    plan = make_plan(experts, 4, capacity, p)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(len(plan.order), 3, dtype=torch.float64, requires_grad=True)
    weights = p.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: dispatch(x, plan), x)
    assert torch.autograd.gradcheck(lambda rows: collect(rows, plan), rows)
    assert torch.autograd.gradcheck(lambda *both: combine(*both, plan), (rows, weights))
    torch.testing.assert_close((dispatch(x, plan) * rows).sum(), (x * collect(rows, plan)).sum())


def test_sums_in_bfloat16_are_made_in_float32():
    plan = make_plan(torch.arange(8).view(1, 8), 8)
    rows = torch.tensor([[256.0]] + [[1.0]] * 7).bfloat16()
    assert collect(rows, plan).item() == 264, "in bfloat16 256 + 1 is 256"


def test_places_within_an_expert():
    assert places(torch.tensor([2, 0, 3])).tolist() == [0, 1, 0, 1, 2]
