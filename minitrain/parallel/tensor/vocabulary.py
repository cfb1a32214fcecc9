"""Vocabulary parallelism: each rank has V/N rows of the embedding and V/N columns of the logits.

A token is looked up on the rank that has its row, is zero on the others, and the sum goes to all.
The loss needs two numbers per token and rank, its log-sum-exp l and the target's logit a, 0 if
another rank has that: with all ranks' l, the loss is log Σ exp l - Σ a. No rank ever holds B·T·V
logits:

    gather the logits       (N-1)/N·B·T·V·4 bytes sent, B·T·V·4 held, twice
    gather l and a          8(N-1)·B·T bytes sent, B·T·V/N·4 held, and a chunk

If N does not divide V, V is padded to ⌈V/N⌉ a rank: columns past V are left out of every sum.
Papers: Shoeybi et al., arXiv 1909.08053. Lab: e02b_tensor_parallel.
Shapes: B batch  T tokens  D width  V vocabulary  N ranks  n = B·T.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minitrain.errors import InputError
from minitrain.parallel.collectives.overlapped import (
    start_all_reduce,
    start_gather,
    start_reduce_scatter_sum,
)
from minitrain.parallel.layout import padded_slice, take_slice
from minitrain.ranks.group import Group
from minitrain.training.loss import IGNORED

CHUNK_NUMBERS = 2**17  # logits processed at a time: fits a core's cache


# ---- as lab e02b writes them; `tp` is described in layers.py ----


def embed(tokens: Tensor, weight: Tensor, tp: Any) -> Tensor:
    """tokens (B, T), weight (V/N, D): this rank's rows -> (B, T, D) on every rank."""
    places = tokens - tp.rank * len(weight)
    elsewhere = (places < 0) | (places >= len(weight))  # (B, T)
    rows = F.embedding(places.masked_fill(elsewhere, 0), weight)
    return tp.reduce(rows.masked_fill(rearrange(elsewhere, "b t -> b t 1"), 0))


def vocabulary_loss(logits: Tensor, targets: Tensor, tp: Any) -> Tensor:
    """logits (n, V/N), targets (n,) -> the mean cross-entropy (), from three numbers a token."""
    width = logits.shape[-1]
    top = tp.max(logits.amax(dim=-1))  # (n,)
    total = tp.reduce((logits - rearrange(top, "n -> n 1")).exp().sum(dim=-1))  # (n,)
    places = targets - tp.rank * width
    elsewhere = (places < 0) | (places >= width)
    mine = logits.gather(-1, rearrange(places.masked_fill(elsewhere, 0), "n -> n 1"))[:, 0]
    aim = tp.reduce(mine.masked_fill(elsewhere, 0))  # (n,): the target's logit
    return (top + total.log() - aim).mean()


# ---- embedding ----


class VocabularyEmbedding(nn.Module):
    """This rank's ⌈V/N⌉ rows of an embedding's matrix (V, D)."""

    def __init__(self, embedding: nn.Embedding, group: Group, sequence: bool = False) -> None:
        super().__init__()
        self.group, self.sequence = group, sequence
        self.part = padded_slice(len(embedding.weight), group, dim=0)
        self.weight = take_slice(embedding.weight, self.part, "tp")

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> (B, T, D), or (B, T/N, D) with `sequence`."""
        if self.group.size == 1:
            return F.embedding(tokens, self.weight)
        return _Embed.apply(tokens - self.part.start, self.weight, self.group, self.sequence)


class _Embed(torch.autograd.Function):
    """places (B, T), rows of `weight` (V/N, D) or outside it (on another rank) -> (B, T, D).

    Masked and summed in place; backward reads this rank's rows only.
    """

    @staticmethod
    def forward(ctx, places: Tensor, weight: Tensor, group: Group, sequence: bool) -> Tensor:
        elsewhere = (places < 0) | (places >= len(weight))  # (B, T)
        ctx.save_for_backward(places, elsewhere)
        ctx.group, ctx.sequence, ctx.shape = group, sequence, weight.shape
        rows = F.embedding(places.masked_fill(elsewhere, 0), weight)
        rows.masked_fill_(rearrange(elsewhere, "b t -> b t 1"), 0)  # (B, T, D), a part
        if sequence:
            return start_reduce_scatter_sum(group, rows, dim=1)()
        return start_all_reduce(group, rows)()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        places, elsewhere = ctx.saved_tensors
        dy = start_gather(ctx.group, dy, dim=1)() if ctx.sequence else dy  # (B, T, D)
        dw = dy.new_zeros(ctx.shape)
        dw.index_add_(0, places[~elsewhere], dy[~elsewhere])
        return None, dw, None, None


# ---- cross-entropy ----


def vocabulary_parallel_loss(
    logits: Tensor,
    targets: Tensor,
    total_tokens: Tensor | int,
    group: Group,
    vocab_size: int,
) -> Tensor:
    """logits (B, T, V/N), targets (B, T), -100 where not counted -> the loss, () on every rank,
    equal to `token_weighted_loss` on whole logits. Keeps the logits and a number per token for
    backward.

    A target outside the vocabulary goes unnoticed.
    """
    width = logits.shape[-1]
    if width * group.size < vocab_size:
        raise InputError(
            f"{group.size} ranks with {width} logits each are fewer than the vocabulary of "
            f"{vocab_size}: give each rank {-(-vocab_size // group.size)}"
        )
    mine = max(0, min(width, vocab_size - group.rank * width))
    columns = _Columns(group, group.rank * width, mine)
    summed = _CrossEntropy.apply(logits.flatten(0, -2), targets.flatten(), columns)
    return summed / total_tokens


@dataclass(frozen=True)
class _Columns:
    """This rank's columns of the logits: `count` from `start`, padding left out."""

    group: Group
    start: int
    count: int

    def chunks(self, logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Logits of some tokens at a time, at least float32, without padding: (chunk, columns)."""
        step = max(1, CHUNK_NUMBERS // max(1, self.count))
        dtype = torch.promote_types(logits.dtype, torch.float32)
        for begin in range(0, len(logits), step):
            tokens = slice(begin, begin + step)
            yield tokens, logits[tokens, : self.count].to(dtype)

    def here(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens (m,) whose target is one of these columns, and its column (m,)."""
        places = targets - self.start
        tokens = ((places >= 0) & (places < self.count)).nonzero()[:, 0]
        return tokens, places[tokens]


class _CrossEntropy(torch.autograd.Function):
    """logits (n, V/N), targets (n,) -> the sum of the losses, ()."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, columns: _Columns) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        mine = torch.zeros(
            2, len(logits), dtype=wide, device=logits.device
        )  # l and a of each token
        log_sums, aims = mine
        for tokens, chunk in columns.chunks(logits):
            torch.logsumexp(chunk, dim=-1, out=log_sums[tokens])
        tokens, places = columns.here(targets)
        aims[tokens] = logits[tokens, places].to(wide)
        log_sums, aims = _of_all_ranks(mine, columns.group)  # (n,) both
        ctx.columns = columns
        ctx.save_for_backward(logits, targets, log_sums)
        return (log_sums - aims).masked_fill(targets == IGNORED, 0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        """dy · (softmax - [target]) per token, 0 where ignored."""
        (logits, targets, log_sums), columns = ctx.saved_tensors, ctx.columns
        counted = dy * (targets != IGNORED)  # (n,)
        out = torch.zeros_like(logits)
        for tokens, chunk in columns.chunks(logits):
            softmax = (chunk - log_sums[tokens, None]).exp_().mul_(counted[tokens, None])
            out[tokens, : columns.count] = softmax
        tokens, places = columns.here(targets)
        out[tokens, places] -= counted[tokens].to(out.dtype)
        return out, None, None


def _of_all_ranks(mine: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Each rank's l and a (2, n) -> over all ranks: log Σ exp l and Σ a, (n,) both."""
    if group.size == 1:
        return tuple(mine)
    theirs = group.all_gather(mine.new_empty(group.size, *mine.shape), mine)  # (N, 2, n)
    return theirs[:, 0].logsumexp(dim=0), theirs[:, 1].sum(dim=0)
