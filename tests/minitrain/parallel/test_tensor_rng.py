from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from minitrain.parallel.launch import launch
from minitrain.parallel.tensor_rng import tensor_rng


def masks(group):
    """Dropout outside, inside, inside again, and outside: 64 places each."""
    torch.manual_seed(7)  # all ranks alike
    ones, out = torch.ones(64), []
    out.append(F.dropout(ones, 0.5))
    for _ in range(2):
        with tensor_rng(group):
            out.append(F.dropout(ones, 0.5))
    out.append(F.dropout(ones, 0.5))
    return torch.stack(out) > 0


def test_ranks_differ_inside_and_agree_outside():
    results = list(launch(masks, ranks=4))
    before, first, second, after = torch.stack(results, dim=1)  # (4 ranks, 64) each
    assert (before == before[0]).all() and (after == after[0]).all()
    assert len(before[0].unique()) == 2 and not torch.equal(before[0], after[0])
    for inside in (first, second):
        assert len(inside.unique(dim=0)) == 4, "each rank has its own mask"
    assert not torch.equal(first, second), "a region does not repeat the one before"


def wrong(group):
    """Without the region masks are the same on all ranks; seeded by rank, they part for good."""
    torch.manual_seed(7)
    same = F.dropout(torch.ones(64), 0.5)
    torch.manual_seed(7 + group.rank)
    F.dropout(torch.ones(64), 0.5)
    return same, F.dropout(torch.ones(64), 0.5)


def test_wrong_versions_are_told_apart():
    (same, after), (same_there, after_there) = launch(wrong, ranks=2)
    assert torch.equal(same, same_there) and not torch.equal(after, after_there)


def recomputed(group):
    def region(x):
        with tensor_rng(group):
            return F.dropout(x.sin(), 0.5)

    gradients = []
    for save in (False, True):
        torch.manual_seed(3)
        x = torch.linspace(0, 1, 64, requires_grad=True)
        y = region(x) if save else checkpoint(region, x, use_reentrant=False)
        torch.rand(5)  # what comes between forward and recomputation
        y.sum().backward()
        gradients.append(x.grad)
    return torch.equal(*gradients), (gradients[0] == 0).any().item()


def test_a_recomputation_draws_the_same_masks():
    assert list(launch(recomputed, ranks=2)) == [(True, True)] * 2
