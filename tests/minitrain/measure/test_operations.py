"""Operations: calls, bytes and FLOPs of each kind, by hand; views are none."""

from __future__ import annotations

import torch

from minitrain.measure.operations import operations_of


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
