"""The cost of one call: bytes kept for backward, bytes allocated, FLOPs of each operation."""

from __future__ import annotations

import torch

from minitrain.measure.kept import kept_for_backward
from minitrain.measure.memory import peak_allocated_bytes
from minitrain.measure.operations import operations_of


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


def test_the_peak_is_of_what_lives_at_the_same_time():
    def two_at_a_time():
        a = torch.ones(1000)  # 4,000 bytes
        b = a + 1
        del a
        c = b * 2
        return (b, c)

    peak = peak_allocated_bytes(lambda: two_at_a_time() and None)
    assert 8000 <= peak < 9000
    assert 16000 <= peak_allocated_bytes(lambda: [torch.ones(1000) for _ in range(4)]) < 17000


def test_what_was_there_before_does_not_count():
    before = torch.ones(100_000)
    assert peak_allocated_bytes(lambda: before.sum()) < 1000


def test_buffers_inside_an_operation_count():
    x = torch.randn(300, 300)
    inside = peak_allocated_bytes(lambda: torch.linalg.inv(x))
    assert inside > x.nbytes, "the result and a workspace"


def test_each_kind_is_counted_and_the_dear_ones_come_first():
    x, weight = torch.randn(6, 4), torch.randn(4, 5)
    rows = operations_of(lambda: ((x @ weight).T.sigmoid(), x @ weight, x.view(24) * 2))
    assert rows[0] == {"operation": "mm", "calls": 2, "bytes": 2 * 4 * 30, "FLOPs": 2 * 2 * 4 * 30}
    assert {row["operation"]: (row["bytes"], row["FLOPs"]) for row in rows[1:]} == {
        "sigmoid": (4 * 30, 0),
        "mul": (4 * 24, 0),
    }


def test_the_first_of_several_results_counts():
    x = torch.randn(3, 8)
    (row,) = operations_of(lambda: x.topk(2))
    assert row == {"operation": "topk", "calls": 1, "bytes": 4 * 3 * 2, "FLOPs": 0}
