"""Grouped matmul and the experts' own backward, against a loop and autograd."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from minitrain.measure.flops import counted_flops
from minitrain.measure.memory import MemoryLedger
from minitrain.model.experts.grouped import (
    Experts,
    grouped_swiglu,
    has_kernel,
    kernel_runs,
    looped_swiglu,
)

COUNTS = [torch.tensor(c) for c in ([3, 0, 9, 4], [0, 0, 0, 16], [4, 4, 4, 4])]


def rows_and_experts(dtype=torch.float64, width=8, inner=12):
    torch.manual_seed(0)
    return torch.randn(16, width, dtype=dtype), Experts(4, width, inner).to(dtype)


def one_by_one(rows, experts, counts):
    """Autograd's own backward, segment by segment."""
    weights = (experts.gate, experts.up, experts.down)
    return torch.cat(
        [
            (F.silu(segment @ g) * (segment @ u)) @ d
            for segment, g, u, d in zip(rows.split(counts.tolist()), *weights)
        ]
    )


@pytest.mark.parametrize("counts", COUNTS)
def test_equals_the_loop_with_every_gradient(counts):
    rows, experts = rows_and_experts()
    inputs = [rows.requires_grad_(), *experts.parameters()]
    ours, theirs = experts(rows, counts), one_by_one(rows, experts, counts)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    slope = torch.randn_like(ours)
    for mine, other in zip(
        torch.autograd.grad(ours, inputs, slope), torch.autograd.grad(theirs, inputs, slope)
    ):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_expert_without_rows_gets_zeros_and_not_none(dtype):
    rows, experts = rows_and_experts(dtype)
    experts(rows, COUNTS[0]).sum().backward()
    for weight in experts.parameters():
        assert weight.grad[1].abs().max() == 0 and weight.grad[2].abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_rows_at_all(dtype):
    rows, experts = rows_and_experts(dtype)
    out = experts(rows[:0].requires_grad_(), torch.zeros(4, dtype=torch.int64))
    out.sum().backward()
    assert out.shape == (0, 8) and experts.gate.grad.abs().max() == 0


@pytest.mark.skipif(not kernel_runs(torch.float32, "cpu"), reason="needs torch 2.9 or newer")
@pytest.mark.parametrize("counts", COUNTS)
def test_torchs_kernel_and_the_loop_agree_with_every_gradient(counts):
    rows, experts = rows_and_experts(torch.float32)
    inputs, slope = [rows.requires_grad_(), *experts.parameters()], torch.randn(16, 8)
    weights = (experts.gate, experts.up, experts.down)
    kernel, loop = (swiglu(rows, *weights, counts) for swiglu in (grouped_swiglu, looped_swiglu))
    torch.testing.assert_close(kernel, loop, rtol=1e-5, atol=1e-5)
    for mine, other in zip(
        torch.autograd.grad(kernel, inputs, slope), torch.autograd.grad(loop, inputs, slope)
    ):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    flops = 3 * 3 * 2 * 16 * 8 * 12
    run = partial(grouped_swiglu, rows, *weights, counts)
    assert counted_flops(lambda: run().backward(slope)) == flops


def test_the_kernel_is_for_gpus():
    assert not has_kernel(torch.zeros(16, 16)), (
        "on a CPU the loop is as fast, and any dtype will do"
    )
    assert not kernel_runs(torch.float64, "cpu")


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
