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


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(InputError, match="10 tokens cannot be split over 4 chunks: use 8 or 12"):
        split_tensor(torch.zeros(1, 10), 0, 2)
    with pytest.raises(InputError, match="did you mean 'zigzag'"):
        chunks_of(0, 2, "zig-zag")
