"""The bytes that one call keeps for backward: each storage once, weights not."""

from __future__ import annotations

import torch

from minitrain.measure.kept import kept_for_backward


def test_a_matmul_keeps_its_input_and_its_weight():
    x, w = torch.ones(3, 5, requires_grad=True), torch.ones(5, 7, requires_grad=True)
    y, nbytes = kept_for_backward(torch.matmul, x, w)
    assert nbytes == 4 * (3 * 5 + 5 * 7) and y.shape == (3, 7)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3, 5), 7.0))


def test_what_is_there_anyhow_does_not_count_and_views_count_once():
    x, w = torch.ones(3, 5, requires_grad=True), torch.ones(5, 5, requires_grad=True)
    _, nbytes = kept_for_backward(lambda: (x @ w) @ w.T, but=[w, "no tensor"])
    assert nbytes == 4 * 2 * 3 * 5  # x, and x·w


def test_nothing_is_kept_without_a_gradient():
    _, nbytes = kept_for_backward(torch.exp, torch.ones(9))
    assert nbytes == 0
