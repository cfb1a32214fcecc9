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
