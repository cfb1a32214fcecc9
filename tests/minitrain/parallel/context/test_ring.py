"""Context parallelism on 1 to 4 ranks against one process: every gradient, every byte."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from minitrain.data.loader import Batch
from minitrain.errors import InputError
from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import tiled_attention, tiled_forward
from minitrain.model.config import ModelConfig
from minitrain.model.rope import document_positions
from minitrain.model.transformer import build
from minitrain.parallel.context import ring
from minitrain.parallel.context.gather import gather_sequence
from minitrain.parallel.context.model import KINDS, context_parallel
from minitrain.parallel.context.ring import merge, ring_attention, ring_forward, zigzag
from minitrain.parallel.context.split import ORDERS, split_sequence, split_tensor
from minitrain.ranks.launch import launch

LENGTH, VOCABULARY, LAYERS = 24, 17, 2  # 24 tokens: 2N divides them for N = 1, 2, 3, 4
HEADS = {1: (4, 2), 2: (4, 2), 3: (6, 3), 4: (8, 2)}  # query and key/value heads, for Ulysses too
EXACT = {"rtol": 0, "atol": 1e-10}
CASES = {"text": (False, None), "documents": (True, None), "windowed documents": (True, 7)}


def model_of(heads, window=None):
    config = ModelConfig(
        VOCABULARY, 8 * heads[0] // 2, LAYERS, *heads, ffn_size=24, window=window, qkv_bias=True
    )
    return build(config, dtype=torch.float64)


def batch_of(packed: bool) -> Batch:
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(VOCABULARY, (2, LENGTH + 1), generator=generator)
    documents = torch.randint(0, 4, (2, LENGTH), generator=generator).eq(0).cumsum(1)
    targets = text[:, 1:].masked_fill(torch.rand(2, LENGTH, generator=generator) < 0.2, -100)
    documents = documents if packed else torch.zeros_like(documents)
    return Batch(text[:, :-1], targets, documents, document_positions(documents))


def outcome(model, part: Batch, packed: bool, total: int, positions=None):
    """Logits and gradients of this part's share of the loss over `total` targets."""
    model.zero_grad(set_to_none=True)
    logits = model(part.tokens, part.documents if packed else None, positions)
    summed = F.cross_entropy(logits.flatten(0, 1), part.targets.flatten(), reduction="sum")
    (summed / total).backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters()}


def one_process(heads, packed, window):
    batch = batch_of(packed)
    return outcome(model_of(heads, window), batch, packed, batch.tokens_counted)


def together(group, model, packed, order, positions=None):
    """The whole logits and summed gradients, as every rank has them."""
    batch = batch_of(packed)
    part = split_sequence(batch, group.rank, group.size, order)
    positions = part.positions if positions == "given" else positions
    logits, gradients = outcome(model, part, packed, batch.tokens_counted, positions)
    for gradient in gradients.values():
        group.all_reduce(gradient)
    return gather_sequence(group, order, logits), gradients


def assert_same(got, want):
    torch.testing.assert_close(got[0], want[0], **EXACT)
    assert set(got[1]) == set(want[1])
    for name, gradient in got[1].items():
        torch.testing.assert_close(gradient, want[1][name], **EXACT, msg=f"{name} differs")


def every_kind(group, heads):
    found = {}
    for case, (packed, window) in CASES.items():
        for order in ORDERS if case == "documents" else ORDERS[:1]:
            for kind in KINDS:
                model = context_parallel(model_of(heads, window), group, order, kind)
                found[case, order, kind] = together(group, model, packed, order)
    model = context_parallel(model_of(heads), group)
    found["documents", "positions given"] = together(group, model, True, "zigzag", "given")
    return found


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_every_kind_and_order_equals_one_process_with_every_gradient(ranks):
    want = {case: one_process(HEADS[ranks], *which) for case, which in CASES.items()}
    for found in launch(every_kind, HEADS[ranks], ranks=ranks, timeout=120):
        assert len(found) == (len(CASES) + 1) * len(KINDS) + 1
        for (case, *_), got in found.items():
            assert_same(got, want[case])


# ---- what is known to go wrong, put in: each must differ from one process ----


def add_up(out, lse, new_out, new_lse):
    """A merge that forgets that each part was divided by its own sum."""
    return out + new_out, torch.logaddexp(lse, new_lse)


def mistakes(group, heads):
    on_ranks = partial(context_parallel, group=group)
    local = torch.arange(LENGTH // group.size)
    found = {
        "no RoPE offset": together(group, on_ranks(model_of(heads)), False, "zigzag", local),
        "cut in another order": together(group, on_ranks(model_of(heads)), False, "contiguous"),
    }
    model = on_ranks(model_of(heads))
    model.look_around = partial(forgets_documents, model.look_around)
    found["documents read each other"] = together(group, model, True, "zigzag", "given")
    ring.merge = add_up  # in this rank's process alone
    found["merged without scaling"] = together(group, on_ranks(model_of(heads)), False, "zigzag")
    return found


def forgets_documents(look_around, x, documents, positions):
    return look_around(x, None, positions)


def test_known_mistakes_are_seen():
    for found in launch(mistakes, HEADS[2], ranks=2, timeout=60):
        for name, (logits, gradients) in found.items():
            right_logits, right = one_process(HEADS[2], "documents" in name, None)
            assert not torch.allclose(logits, right_logits, atol=1e-4), name
            assert not all(torch.allclose(gradients[n], right[n], atol=1e-5) for n in right), name


def heads_of(size=LENGTH, dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    shapes = [(2, heads, size, 4) for heads in (4, 2, 2, 4)]  # q, k, v, and the gradient of out
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def in_bfloat16(group):
    """(q, k and v) gradients, whole: of the ring as it is, and of one whose gradients stay put."""

    def gradients():
        cut = partial(split_tensor, rank=group.rank, size=group.size, dim=2)
        *qkv, d_out = (cut(z) for z in heads_of(dtype=torch.bfloat16))
        qkv = [z.requires_grad_() for z in qkv]
        grads = torch.autograd.grad(ring_attention(group, "zigzag", *qkv), qkv, d_out)
        return [gather_sequence(group, "zigzag", g, dim=2) for g in grads]

    right, travel = gradients(), ring.pass_on
    # On its way a gradient is float32, and a key bfloat16.
    ring.pass_on = lambda g, x: (lambda: x) if x.dtype == torch.float32 else travel(g, x)
    return right, gradients()


def test_gradients_of_keys_return_to_their_owner_in_float32():
    *qkv, d_out = heads_of(dtype=torch.bfloat16)
    qkv = [z.double().requires_grad_() for z in qkv]
    want = torch.autograd.grad(tiled_attention(*qkv), qkv, d_out.double())
    for right, stayed in launch(in_bfloat16, ranks=3, timeout=60):
        for mine, theirs in zip(right, want):
            assert mine.dtype == torch.bfloat16
            torch.testing.assert_close(mine.double(), theirs, rtol=2**-6, atol=2**-6)
        assert torch.equal(stayed[0], right[0]), "queries never leave"
        for mine, theirs in zip(stayed[1:], want[1:]):
            assert not torch.allclose(mine.double(), theirs, rtol=0.1, atol=0.1)


# ---- what is sent, and when ----


def kernel_traffic(group):
    """(forward, backward) bytes of one layer, by kind and dtype."""
    found = {}
    for dtype in (torch.float64, torch.bfloat16):
        for kind, kernel in KINDS.items():
            cut = partial(split_tensor, rank=group.rank, size=group.size, dim=2)
            *qkv, d_out = (cut(z) for z in heads_of(dtype=dtype))
            sent = [group.trace.bytes_sent()]
            out = kernel(group, "zigzag", *(z.requires_grad_() for z in qkv))
            sent.append(group.trace.bytes_sent())
            out.backward(d_out)
            sent.append(group.trace.bytes_sent())
            found[kind, dtype.itemsize] = sent[1] - sent[0], sent[2] - sent[1]
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_a_layer_are_the_closed_forms(ranks):
    """4 query heads and 2 key/value heads: the ring carries the keys of 2 heads."""
    batch, heads, kv_heads, head_size = 2, 4, 2, 4
    of_a_head = batch * LENGTH // ranks * head_size  # elements
    for found in launch(kernel_traffic, ranks=ranks, timeout=60):
        for size in (8, 2):
            hops = (ranks - 1) * 2 * kv_heads * of_a_head
            assert found["ring", size] == (hops * size, hops * (size + max(4, size))), (
                "sums: float32"
            )
            assert found["gather", size] == (hops * size, hops * size)
            carried = 2 * heads + 2 * max(kv_heads, ranks)  # q and out; k and v
            exchanged = (ranks - 1) * carried * of_a_head // ranks * size
            assert found["ulysses", size] == (exchanged, exchanged)


def in_a_model(group):
    """Operations of a step of a model, plain and with its blocks recomputed; are both the same?"""
    model, batch = context_parallel(model_of(HEADS[2]), group), batch_of(True)
    part = split_sequence(batch, group.rank, group.size)
    sent = [len(group.trace.ops)]
    _, plain = outcome(model, part, True, batch.tokens_counted)
    sent.append(len(group.trace.ops))
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    _, again = outcome(model, part, True, batch.tokens_counted)
    kinds = [op.kind for op in group.trace.ops[slice(*sent)]]
    return kinds, [torch.equal(plain[name], again[name]) for name in plain]


def test_a_step_of_a_model_and_one_that_recomputes():
    for kinds, equal in launch(in_a_model, ranks=2, timeout=60):
        assert kinds.count("all_gather") == 1, "documents are gathered once, not once a layer"
        assert kinds.count("send") == kinds.count("recv") == LAYERS * (1 + 2)
        assert len(kinds) == 1 + 2 * 3 * LAYERS
        assert all(equal)


def at_work(group):
    """FLOPs of a ring, in each order, and how many messages are under way at each computation."""
    under_way = []

    def watched(*inputs):
        under_way.append(sum(op.waited is None for op in group.trace.ops))
        return tiled_forward(*inputs)

    ring.tiled_forward = watched  # in this rank's process alone
    flops = []
    for order in ORDERS:
        q, k, v = (split_tensor(z, group.rank, group.size, order, 2) for z in heads_of()[:3])
        with FlopCounterMode(display=False) as counter:
            ring_attention(group, order, q, k, v)
        flops.append(counter.get_total_flops())
    return flops, under_way


def test_the_next_block_is_under_way_while_this_one_computes_and_zigzag_is_balanced():
    results = launch(at_work, ranks=4, timeout=60)
    zigzag, contiguous = zip(*(flops for flops, _ in results))
    assert len(set(zigzag)) == 1
    # A rank reads its own chunk and all before it. Chunks on the diagonal are computed in full.
    assert [n / contiguous[0] for n in contiguous] == [1, 2, 3, 4]
    for rank, (_, under_way) in enumerate(results):
        own, others, alone = 3, 2 * 2, 2  # zigzag: pairs of chunks in the 1st, 2 middle, last step
        expected = [2] * (own + others) + [0] * alone
        assert under_way == expected + [0 if rank == 3 and s == 3 else 2 for s in range(rank + 1)]


# ---- the merge, and what cannot work ----


def test_merging_with_scores_far_apart_does_not_overflow():
    out = torch.tensor([[[[1.0]]], [[[2.0]]]], dtype=torch.float64)
    lse = torch.tensor([[[1e4]], [[-1e4]]], dtype=torch.float64)
    merged, both = merge(out[:1], lse[:1], out[1:], lse[1:])
    assert merged.item() == 1 and both.item() == 1e4


@pytest.mark.parametrize(
    "kind, queries, heads, kv_heads, message",
    [
        ("ring", 3, 2, 2, "a ring over 3 queries and 3 keys a rank, in zigzag order"),
        ("ulysses", 4, 3, 3, "Ulysses over 2 ranks with 3 heads and 3 key/value heads"),
        ("ulysses", 4, 6, 3, "a ring takes any number"),
        ("ring", 4, 3, 2, "3 query heads cannot share 2 key/value heads"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(kind, queries, heads, kv_heads, message):
    q, k, v = (torch.zeros(1, h, queries, 2) for h in (heads, kv_heads, kv_heads))
    with pytest.raises(InputError, match=message):
        KINDS[kind](FakeGroup(), "zigzag", q, k, v)


class FakeGroup:
    rank, size = 0, 2


def test_an_unknown_kind_or_order_is_refused():
    model = model_of(HEADS[1])
    with pytest.raises(InputError, match="did you mean 'ring'"):
        context_parallel(model, FakeGroup(), kind="rings")
    with pytest.raises(InputError, match="order of a sequence"):
        context_parallel(model, FakeGroup(), order="random")


def lab_rings(group):
    """Each rank's tokens, and what the forward ring of lab e02e finds for them, in both orders."""
    found = []
    for places in (zigzag(LENGTH, group.size)[0], torch.arange(LENGTH).view(group.size, -1)):
        mine = places[group.rank]
        q, k, v = (z[:, :, mine] for z in heads_of()[:3])
        found.append((mine, *ring_forward(group, places, q, torch.stack((k, v)))))
    return found


def test_the_ring_over_given_places_equals_one_process():
    want = tiled_forward(*heads_of()[:3], Mask(0))
    for found in launch(lab_rings, ranks=3, timeout=60):
        for mine, *got in found:
            for one, whole in zip(got, want):
                torch.testing.assert_close(one, whole[:, :, mine], **EXACT)


def test_zigzag_is_the_order_of_split_py_and_its_inverse():
    places, inverse = zigzag(LENGTH, 3)
    sequence = torch.arange(LENGTH)[None]
    assert torch.equal(torch.cat([split_tensor(sequence, rank, 3) for rank in range(3)]), places)
    assert torch.equal(places.flatten()[inverse], sequence[0])
    with pytest.raises(InputError, match="25 tokens cannot be split over 6 chunks: use 24 or 30"):
        zigzag(25, 3)


def test_merging_equals_attention_to_all_keys_also_where_nothing_is_read():
    q, k, v, _ = heads_of()
    mask, rows = Mask(-5), slice(0, LENGTH)  # the first 5 queries read nothing at all
    whole, lse = tiled_forward(q, k, v, mask)
    out, found = torch.zeros_like(q), torch.full(q.shape[:3], -torch.inf, dtype=q.dtype)
    for columns in (slice(16, 24), slice(0, 9), slice(9, 16)):  # in any order
        part = mask.part(rows, columns)
        out, found = merge(out, found, *tiled_forward(q, k[:, :, columns], v[:, :, columns], part))
    torch.testing.assert_close(out, whole, **EXACT)
    torch.testing.assert_close(found, lse, **EXACT)
    assert out[:, :, :5].eq(0).all() and found[:, :, :5].eq(-torch.inf).all()
