"""The description of a mask against the mask drawn in full."""

from __future__ import annotations

import pytest
import torch

from minitrain.model.attention.grouped_query import attention_mask
from minitrain.model.attention.mask import Mask


def drawn(mask: Mask, queries: int, keys: int) -> torch.Tensor:
    """(B or 1, queries, keys), one cell after the other, by the definition."""
    batch = 1 if mask.q_documents is None else len(mask.q_documents)
    out = torch.zeros(batch, queries, keys, dtype=torch.bool)
    for b, i, j in torch.cartesian_prod(*map(torch.arange, out.shape)).reshape(-1, 3).tolist():
        distance = mask.offset + i - j
        near = distance >= 0 and (mask.window is None or distance < mask.window)
        known = mask.q_documents is None or mask.q_documents[b, i] == mask.k_documents[b, j]
        out[b, i, j] = near and known
    return out


def whole(mask: Mask, queries: int, keys: int) -> torch.Tensor:
    tile = mask.tile(slice(0, queries), slice(0, keys), "cpu")
    everything = torch.ones(1, queries, keys, dtype=torch.bool)
    return everything if tile is None else tile[:, 0]


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [4, 5, 5, 5, 5, 5, 5]])


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("packed", [False, True])
def test_equals_the_mask_of_the_fused_kernel(window, packed):
    documents = DOCUMENTS if packed else None
    mask = Mask.of(torch.zeros(2, 7, 1), documents, window)
    fused = attention_mask(torch.zeros(2, 7, 1), documents, window)
    want = torch.full((7, 7), -torch.inf).triu(1) if fused is None else fused
    assert torch.equal(whole(mask, 7, 7).expand(2, 7, 7), want.expand(2, 1, 7, 7)[:, 0] == 0)


@pytest.mark.parametrize("offset", [-9, -2, 0, 1, 4, 30])
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("packed", [False, True])
def test_parts_tiles_and_the_keys_read(offset, window, packed):
    documents = (DOCUMENTS, DOCUMENTS[:, 1:6]) if packed else (None, None)
    mask = Mask(offset, window, *documents)
    want = drawn(mask, 7, 5)
    for i in range(7):
        for stop in range(i + 1, 8):
            rows, columns = slice(i, stop), slice(i % 4, 4)
            part = mask.part(rows, columns)
            got = whole(part, stop - i, columns.stop - columns.start)
            assert torch.equal(got.expand(len(want), -1, -1), want[:, rows, columns])
            keys = mask.keys(rows, 5)
            reads = drawn(Mask(offset, window), 7, 5)[0, rows].any(dim=0).nonzero().flatten()
            assert reads.tolist() == list(keys), "the run of keys is as short as it can be"


def test_a_tile_read_in_full_needs_no_mask():
    assert Mask(4).tile(slice(0, 3), slice(0, 5), "cpu") is None
    assert Mask(3).tile(slice(0, 3), slice(0, 5), "cpu") is not None
    assert Mask(4, 7).tile(slice(0, 3), slice(0, 5), "cpu") is None
    assert Mask(4, 6).tile(slice(0, 3), slice(0, 5), "cpu") is not None


def test_without_an_offset_the_last_query_stands_beside_the_last_key():
    assert Mask().between(3, 7).offset == 4 and Mask(2).between(3, 7).offset == 2
    with pytest.raises(AssertionError, match="between"):
        Mask().part(slice(0, 1), slice(0, 1))
    with pytest.raises(AssertionError, match="or for neither"):
        Mask(q_documents=DOCUMENTS)
