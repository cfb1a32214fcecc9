"""Cutting a sequence over ranks and joining it again; who has how much to do."""

from __future__ import annotations

import pytest
import torch

from minitrain.data.loader import Batch, Loader
from minitrain.data.packing import pack
from minitrain.errors import InputError
from minitrain.parallel.context.split import (
    ORDERS,
    chunks_of,
    join_tensors,
    split_sequence,
    split_tensor,
)


def batch_of_documents(length: int = 24) -> Batch:
    documents = [[i] * (3 + i % 5) for i in range(1, 30)]
    return next(iter(Loader(pack(documents, length, end_token=0), batch_size=2)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_joining_is_the_inverse_of_cutting(order, size):
    batch = batch_of_documents()
    parts = [split_sequence(batch, rank, size, order) for rank in range(size)]
    assert all(part.tokens.shape == (2, 24 // size) for part in parts)
    for name in ("tokens", "targets", "documents", "positions"):
        joined = join_tensors([getattr(part, name) for part in parts], order)
        assert torch.equal(joined, getattr(batch, name))
    x = torch.randn(2, 3, 24, 5)
    cut = [split_tensor(x, rank, size, order, dim=-2) for rank in range(size)]
    assert torch.equal(join_tensors(cut, order, dim=-2), x)
    assert sum(part.tokens_counted for part in parts) == batch.tokens_counted


def test_zigzag_gives_each_rank_an_early_and_a_late_chunk():
    places = torch.arange(12)[None]
    assert split_tensor(places, 0, 3)[0].tolist() == [0, 1, 10, 11]
    assert split_tensor(places, 2, 3)[0].tolist() == [4, 5, 6, 7]
    assert split_tensor(places, 1, 3, "contiguous")[0].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("order", ORDERS)
def test_targets_cross_the_borders_of_chunks(order):
    """Shifted when whole, each target is the next token of the text; shifted after the cut, not."""
    text = torch.arange(25)[None]
    whole = Batch(text[:, :-1], text[:, 1:], torch.zeros(1, 24).long(), torch.arange(24)[None])
    part = split_sequence(whole, 1, 3, order)
    assert torch.equal(part.targets, part.tokens + 1)
    shifted_late = split_tensor(text[:, :-1], 1, 3, order).roll(-1, dims=1)
    assert not torch.equal(shifted_late, part.targets)


def ring_work(size: int, order: str) -> list[list[int]]:
    """[step][rank]: the pairs of a query i and a key j <= i in a ring's step, counted one by one."""
    text = torch.arange(16 * size)[None]
    ranks = [split_tensor(text, rank, size, order)[0] for rank in range(size)]
    return [
        [(ranks[r][:, None] >= ranks[(r - step) % size]).sum().item() for r in range(size)]
        for step in range(size)
    ]


def imbalance(work: list[list[int]]) -> float:
    """Each step lasts as long as its busiest rank: this, over an even share. 1 is perfect."""
    return sum(map(max, work)) * len(work[0]) / sum(map(sum, work))


def test_zigzag_is_balanced_in_every_step_and_contiguous_is_not():
    for size in (2, 3, 4, 8):
        zigzag, contiguous = (ring_work(size, order) for order in ORDERS)
        for work in (zigzag, contiguous):
            assert sum(map(sum, work)) == 16 * size * (16 * size + 1) // 2, "every pair once"
        assert imbalance(zigzag) == 1 and all(len(set(step)) == 1 for step in zigzag)
        assert imbalance(contiguous) == pytest.approx(2 - 1 / size, rel=0.1)
        totals = [sum(rank) for rank in zip(*contiguous)]
        assert totals[-1] / totals[0] == pytest.approx(2 * size - 1, rel=0.1)


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(InputError, match="10 tokens cannot be split over 4 chunks: use 8 or 12"):
        split_tensor(torch.zeros(1, 10), 0, 2)
    with pytest.raises(InputError, match="did you mean 'zigzag'"):
        chunks_of(0, 2, "zig-zag")
