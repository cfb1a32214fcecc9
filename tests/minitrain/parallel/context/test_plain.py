"""The rings of lab e02e against one process, in both orders; dtypes and refusals."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from minitrain.errors import InputError
from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import row_products, tiled_attention, tiled_backward
from minitrain.parallel.collectives.differentiable import all_to_all
from minitrain.parallel.context.plain import halves, ring_backward, ring_forward, ulysses, zigzag
from minitrain.parallel.context.split import chunks_of, join_tensors, split_tensor
from minitrain.ranks.launch import launch

LENGTH, EXACT = 24, {"rtol": 0, "atol": 1e-10}


def inputs():
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, heads, LENGTH, 4) for heads in (6, 3, 3, 6)]  # q, k, v, and the gradient of out
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def one_process():
    q, k, v, d_out = inputs()
    leaves = [z.requires_grad_() for z in (q, k, v)]
    out = tiled_attention(*leaves, Mask(0))
    out.backward(d_out)
    return out.detach(), *(leaf.grad for leaf in leaves)


def orders(size):
    return {"zigzag": zigzag(LENGTH, size)[0], "contiguous": torch.arange(LENGTH).view(size, -1)}


def block_gradients(places, rank, q, asked, owner, block):
    dq, d_block = torch.zeros_like(q), torch.zeros_like(block)
    for rows, keys, offset in halves(places, rank, owner):
        if offset >= 0:
            given = (q[:, :, rows], *block[:, :, :, keys], *(z[:, :, rows] for z in asked))
            d_rows, *d_keys = tiled_backward(*given, Mask(offset))
            dq[:, :, rows] += d_rows
            d_block[:, :, :, keys] += torch.stack(d_keys)
    return dq, d_block


def rings(group):
    found = {}
    for name, places in orders(group.size).items():
        mine = places[group.rank]
        q, k, v, d_out = (z[:, :, mine] for z in inputs())
        kv = torch.stack((k, v))
        out, lse = ring_forward(group, places, q, kv)
        asked = d_out, lse, row_products(d_out, out)
        back = partial(block_gradients, places, group.rank, q, asked)
        dq, (dk, dv) = ring_backward(group, kv, back)
        found[name] = (mine, out, dq, dk, dv)
    q, k, v, d_out = (split_tensor(z, group.rank, group.size, "contiguous", 2) for z in inputs())
    leaves = [z.clone().requires_grad_() for z in (q, k, v)]
    out = ulysses(*leaves, group.size, partial(all_to_all, group=group))
    out.backward(d_out)
    mine = orders(group.size)["contiguous"][group.rank]
    found["ulysses"] = (mine, out.detach(), *(leaf.grad for leaf in leaves))
    return found


@pytest.mark.parametrize("ranks", [1, 3])
def test_all_equal_one_process_with_every_gradient(ranks):
    want = one_process()
    for found in launch(rings, ranks=ranks, timeout=60):
        assert set(found) == {"zigzag", "contiguous", "ulysses"}
        for name, (mine, *got) in found.items():
            for one, whole in zip(got, want):
                torch.testing.assert_close(one, whole[:, :, mine], **EXACT, msg=name)


def test_zigzag_is_the_order_of_split_py_and_its_inverse():
    places, inverse = zigzag(LENGTH, 3)
    text = torch.arange(LENGTH)[None]
    parts = [split_tensor(text, rank, 3) for rank in range(3)]
    assert torch.equal(torch.cat(parts), places) and chunks_of(1, 3) == [1, 4]
    assert torch.equal(places.flatten()[inverse], text[0])
    assert torch.equal(join_tensors([p[None] for p in places]), text)
    with pytest.raises(InputError, match="25 tokens cannot be split over 6 chunks: use 24 or 30"):
        zigzag(25, 3)


def test_ulysses_refuses_ranks_that_do_not_divide_the_heads():
    with pytest.raises(InputError, match="must divide the heads"):
        ulysses(*inputs()[:3], 4, None)
