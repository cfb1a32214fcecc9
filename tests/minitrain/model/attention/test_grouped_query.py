"""Attention by its definition; the description of a mask against the mask drawn in full."""

from __future__ import annotations

import pytest
import torch
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.model.attention.grouped_query import (
    attention,
    attention_mask,
    attention_naive,
    causal_mask,
)
from minitrain.model.attention.mask import Mask

EXACT = {"rtol": 0, "atol": 1e-10}


def random_heads(batch, heads, kv_heads, length, size):
    shapes = [(batch, h, length, size) for h in (heads, kv_heads, kv_heads)]
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]


def one_token_at_a_time(q, k, v, readable):
    """The definition, in loops: readable(i, j) says whether token i may read token j."""
    out = torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).reshape(-1, 3).tolist():
        seen = [j for j in range(i + 1) if readable(b, i, j)]
        scores = torch.stack([q[b, h, i] @ k[b, h // group, j] for j in seen]) / q.shape[-1] ** 0.5
        out[b, h, i] = sum(w * v[b, h // group, j] for w, j in zip(scores.softmax(0), seen))
    return out


@settings(max_examples=25, deadline=None)
@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    length=st.integers(1, 19),
    half_size=st.integers(1, 5),
    window=st.one_of(st.none(), st.integers(1, 20)),
    packed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_naive_and_fused_agree_with_every_gradient(
    kv_heads, group, length, half_size, window, packed, seed
):
    torch.manual_seed(seed)
    q, k, v = random_heads(2, kv_heads * group, kv_heads, length, 2 * half_size)
    documents = torch.randint(0, 2, (2, length)).cumsum(1) if packed else None
    mask = attention_mask(rearrange(q, "b h t c -> b t (h c)"), documents, window)
    outs = [f(q, k, v, mask) for f in (attention_naive, attention)]
    torch.testing.assert_close(outs[0], outs[1], **EXACT)
    dy = torch.randn_like(outs[0])
    grads = [torch.autograd.grad(out, (q, k, v), dy) for out in outs]
    torch.testing.assert_close(grads[0], grads[1], **EXACT)


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("packed", [False, True])
def test_naive_is_the_definition(window, packed):
    q, k, v = random_heads(2, 4, 2, 7, 4)
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 1]])

    def readable(b, i, j):
        near = window is None or i - j < window
        return near and (not packed or documents[b, i] == documents[b, j])

    mask = attention_mask(torch.zeros(2, 7, 1).double(), documents if packed else None, window)
    want = one_token_at_a_time(q, k, v, readable)
    torch.testing.assert_close(attention_naive(q, k, v, mask), want, **EXACT)


def test_no_mask_is_made_where_causality_is_all():
    x = torch.zeros(2, 8, 4)
    assert attention_mask(x, None, None) is None
    assert attention_mask(x, None, 8) is None  # a window as long as the text hides nothing
    assert attention_mask(x, None, 7).shape == (8, 8)
    one = attention_mask(x, torch.zeros(2, 8, dtype=torch.int64), None)
    assert one.shape == (2, 1, 8, 8) and one.dtype == x.dtype
    assert torch.equal(one, causal_mask(x[:, None]).expand(2, 1, 8, 8))


# The description of a mask against the mask drawn in full


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
