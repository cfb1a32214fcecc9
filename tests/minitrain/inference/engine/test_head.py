"""The head from a weight that is laid out: the same logits, of the weight as it is now."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.inference.engine.runner import Head, can_be_laid_out
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build


def small():
    return build(ModelConfig(512, 64, 2, 4, 4, 128), seed=0)


@torch.no_grad()
def test_the_logits_are_the_models_for_any_number_of_rows():
    model = small()
    head = Head(model)
    for rows in (0, 1, 3, 64, 200):
        hidden = torch.randn(rows, 1, 64)
        torch.testing.assert_close(head(hidden), model.head(hidden))


@torch.no_grad()
def test_a_weight_that_has_changed_is_laid_out_anew():
    model = small()
    head, hidden = Head(model), torch.randn(4, 1, 64)
    before = head(hidden)
    model.head.weight.mul_(2)
    torch.testing.assert_close(head(hidden), 2 * before)
    model.head = nn.Linear(64, 512, bias=True)
    torch.testing.assert_close(head(hidden), model.head(hidden))


def test_another_kind_of_head_is_called_as_it_is():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = small()
    model.head = Doubled(64, 512, bias=False)
    hidden = torch.randn(4, 1, 64)
    assert not can_be_laid_out(model.head) and not can_be_laid_out(nn.Linear(64, 512).double())
    assert torch.equal(Head(model)(hidden), model.head(hidden))
