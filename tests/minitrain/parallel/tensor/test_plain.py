from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from minitrain.model.norm import rms_norm
from minitrain.parallel.collectives import differentiable
from minitrain.parallel.tensor.layers import parallel_attention, parallel_mlp, sequence_mlp
from minitrain.parallel.tensor.linear import column_linears, conjugates, row_linear
from minitrain.parallel.tensor.vocabulary import embed, vocabulary_loss
from minitrain.ranks.launch import launch

WIDTH, FEATURES, VOCABULARY, HEAD_SIZE = 12, 18, 30, 2
ROWS, COLUMNS = ("q", "k", "v", "gate", "up"), ("o", "down")


def operators(group, there=None):
    """`tp` from `differentiable.py`, its first pair by `conjugates`, whose forward may be exchanged."""
    copy, reduce = conjugates(there or (lambda x: x), group.all_reduce)
    return SimpleNamespace(
        rank=group.rank,
        size=group.size,
        copy=copy,
        reduce=reduce,
        all_gather=partial(differentiable.all_gather, group=group, dim=1),
        reduce_scatter=partial(differentiable.reduce_scatter, group=group, dim=1),
        max=lambda x: group.all_reduce(x.detach().clone(), op="max"),
    )


def slices(rank, size):
    """The layer's matrices, cut for this rank; all of them for rank 0 of 1."""
    made = torch.Generator().manual_seed(0)
    shapes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | dict.fromkeys(("norm", "bias"), (WIDTH,))
    shapes |= dict.fromkeys(("gate", "up"), (FEATURES, WIDTH)) | {"down": (WIDTH, FEATURES)}
    w = SimpleNamespace(head_size=HEAD_SIZE)
    for name, shape in shapes.items():
        whole = torch.randn(shape, generator=made, dtype=torch.float64)
        cut = whole.chunk(size, 0 if name in ROWS else 1)[rank] if name in ROWS + COLUMNS else whole
        setattr(w, name, cut.clone().requires_grad_())
    return w


def run(group, there=None):
    """Outputs and gradients of everything, beside one process's on the same numbers."""
    rank, size = group.rank, group.size
    tp, w, one = operators(group, there), slices(rank, size), slices(0, 1)
    alone = SimpleNamespace(rank=0, size=1, **dict.fromkeys(("copy", "reduce"), lambda x: x))
    made = torch.Generator().manual_seed(1)
    x = torch.randn(3, 6, WIDTH, generator=made, dtype=torch.float64)
    tokens = torch.randint(VOCABULARY, (18,), generator=made)
    table = torch.randn(VOCABULARY, WIDTH, generator=made, dtype=torch.float64)
    mine, whole = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = parallel_attention(mine, w, tp.copy, tp.reduce) + parallel_mlp(mine, w, tp.copy, tp.reduce)
    want = parallel_attention(whole, one, alone.copy, alone.copy)
    want = want + parallel_mlp(whole, one, alone.copy, alone.copy)
    y.square().sum().backward()
    want.square().sum().backward()
    part, all_rows = (
        table.chunk(size)[rank].clone().requires_grad_(),
        table.clone().requires_grad_(),
    )
    rows, want_rows = embed(tokens.view(3, 6), part, tp), all_rows[tokens].view(3, 6, WIDTH)
    (rows * x).sum().backward()
    (want_rows * x).sum().backward()
    logits = (x[:, :1].flatten(0, 1) @ table.T).chunk(size, -1)[rank].clone().requires_grad_()
    loss = vocabulary_loss(logits, tokens[:3], tp)
    loss.backward()
    all_logits = (x[:, :1].flatten(0, 1) @ table.T).requires_grad_()
    all_loss = F.cross_entropy(all_logits, tokens[:3])
    all_loss.backward()
    pairs = {
        "y": (y, want),
        "dx": (mine.grad, whole.grad),
        "rows": (rows, want_rows),
        "dtable": (part.grad, all_rows.grad.chunk(size)[rank]),
        "loss": (loss, all_loss),
        "dlogits": (logits.grad, all_logits.grad.chunk(size, -1)[rank]),
    }
    return {name: (a.detach(), b.detach()) for name, (a, b) in pairs.items()}


def run_sequence(group):
    """sequence_mlp beside the real linears on the same tokens, gradients of norm and bias too."""
    tp = operators(group)
    x = torch.linspace(-2, 1, 3 * 6 * WIDTH, dtype=torch.float64).view(3, 6, WIDTH)
    x = x.chunk(group.size, 1)[group.rank]
    w, other = slices(group.rank, group.size), slices(group.rank, group.size)
    sequence_mlp(x, w, tp).square().sum().backward()
    n = rms_norm(x, tp.copy(other.norm), 1e-6)
    pairs = [(other.gate, None), (other.up, None)]
    gate, up = column_linears(n, pairs, group, sequence=True)
    down = row_linear(F.silu(gate) * up, other.down, None, group, sequence=True)
    (x + down + tp.copy(other.bias)).square().sum().backward()
    names = ("norm", "gate", "up", "down", "bias")
    return {name: (getattr(w, name).grad, getattr(other, name).grad) for name in names}


def failures(results):
    """The names of what does not agree on some rank."""
    return {
        name
        for result in results
        for name, (got, want) in result.items()
        if not torch.allclose(got, want, rtol=1e-10, atol=1e-12)
    }


def test_three_ranks_equal_one_process():
    assert failures(launch(run, ranks=3)) == set()


def test_the_sequence_form_equals_the_real_linears():
    assert failures(launch(run_sequence, ranks=2)) == set()


def averaged(x):
    return x / 2


def test_another_pair_is_told_apart():
    """A copy that halves on the way in, and so a reduce that halves on the way back."""
    assert {"y", "dx", "dlogits"} <= failures(launch(partial(run, there=averaged), ranks=2))
