from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.parallel.zero.stage_3 import Zero3
from minitrain.parallel.zero.stages_1_2 import Zero
from minitrain.ranks.launch import launch


class Shapes(nn.Module):
    """Rows that lie across one border of shards and across several, a scalar, a matrix of one row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        shapes = [(5, 7), (), (1, 40), (3,), (11, 2), (2, 2, 3)]
        self.weights = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, scale):
        return scale * sum(w.pow(3).sum() for w in self.weights)


def norms(group):
    """Of each stage, before and after, on ranks whose gradients are different."""
    out = []
    for stage in (1, 2, 3):
        model = Shapes()
        zero = Zero3(model, group, []) if stage == 3 else Zero(model, group, stage)
        zero(1.0 + group.rank).backward()
        before = zero.clip_grad_norm_(0.25)
        out.append((before.item(), zero.clip_grad_norm_(1.0).item()))
    return out


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_norm_is_that_of_the_whole_averaged_gradient(ranks):
    model = Shapes()
    (model(1.0) * (ranks + 1) / 2).backward()
    want = nn.utils.clip_grad_norm_(model.parameters(), 0.25).item()
    for found in launch(norms, ranks=ranks):
        for before, after in found:
            assert before == pytest.approx(want, rel=1e-6)
            assert after == pytest.approx(0.25, rel=1e-5)
