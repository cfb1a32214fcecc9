"""The layers of lab e02b, outputs and gradients, beside one process on the same numbers."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from minitrain.parallel.collectives import differentiable
from minitrain.parallel.tensor.layers import parallel_attention, parallel_mlp, sequence_mlp
from minitrain.parallel.tensor.linear import conjugates
from minitrain.parallel.tensor.vocabulary import embed, vocabulary_loss
from minitrain.ranks.launch import launch

WIDTH, FEATURES, VOCABULARY = 12, 18, 30
ROWS, COLUMNS = ("q", "k", "v", "gate", "up"), ("o", "down")  # how a matrix is cut


def operators(group, there=None):
    """`tp` from differentiable.py, its first pair by `conjugates`, whose forward may be changed."""
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


ALONE = SimpleNamespace(rank=0, size=1, max=lambda x: x)
vars(ALONE).update(dict.fromkeys(("copy", "reduce", "all_gather", "reduce_scatter"), lambda x: x))


def cut(name, whole, rank, size):
    if name in ("x", "y of sequence_mlp"):
        return whole.chunk(size, 1)[rank]
    if name in (*ROWS, *COLUMNS, "table", "logits"):
        return whole.chunk(size, 0 if name in (*ROWS, "table") else -1)[rank]
    return whole


def outcome(tp, of_sequence):
    """name -> output or gradient of a layer's forward and backward, this rank's part."""
    made = torch.Generator().manual_seed(0)
    shapes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | dict.fromkeys(("norm", "bias"), (WIDTH,))
    shapes |= dict.fromkeys(("gate", "up"), (FEATURES, WIDTH)) | {"down": (WIDTH, FEATURES)}
    shapes |= {"table": (VOCABULARY, WIDTH), "logits": (18, VOCABULARY), "x": (3, 6, WIDTH)}
    whole = {n: torch.randn(s, generator=made, dtype=torch.float64) for n, s in shapes.items()}
    tokens = torch.randint(VOCABULARY, (3, 6), generator=made)
    w = SimpleNamespace(head_size=2)
    for name, tensor in whole.items():
        is_whole = name == "x" and not of_sequence
        part = tensor if is_whole else cut(name, tensor, tp.rank, tp.size)
        setattr(w, name, part.clone().requires_grad_())
    if of_sequence:
        out = {"y of sequence_mlp": sequence_mlp(w.x, w, tp)}
    else:
        y = parallel_attention(w.x, w, tp.copy, tp.reduce)
        y = y + parallel_mlp(w.x, w, tp.copy, tp.reduce)
        loss = vocabulary_loss(w.logits, tokens.flatten(), tp)
        out = {"y": y, "rows": embed(tokens, w.table, tp), "loss": loss}
    sum(value.square().sum() for value in out.values()).backward()
    found = {name: getattr(w, name).grad for name in whole if getattr(w, name).grad is not None}
    return {name: t.detach() for name, t in (found | out).items()}


def failures(group, there=None):
    """The names of what does not agree with one process on this rank."""
    wrong = set()
    for of_sequence in (False, True):
        want = outcome(ALONE, of_sequence)
        for name, got in outcome(operators(group, there), of_sequence).items():
            is_whole = name == "x" and not of_sequence
            part = want[name] if is_whole else cut(name, want[name], group.rank, group.size)
            if not torch.allclose(got, part, rtol=1e-10, atol=1e-12):
                wrong.add(name)
    return wrong


def test_three_ranks_equal_one_process_whose_loss_is_torchs():
    assert launch(failures, ranks=3) == [set()] * 3
    logits, targets = torch.randn(18, VOCABULARY), torch.randint(VOCABULARY, (18,))
    torch.testing.assert_close(
        vocabulary_loss(logits, targets, ALONE), F.cross_entropy(logits, targets)
    )


def halved(x):
    return x / 2


def test_another_pair_is_seen():
    """A copy that halves on the way in, and so a reduce that halves on the way back."""
    for wrong in launch(failures, halved, ranks=2):
        assert {"y", "x", "logits"} <= wrong
