"""Medusa: heads on the target's last hidden vector, each of which predicts one token further.

    hidden of "little" ─ the target's head   girl                   drawn already, the newest token
                       ─ head 1              named | who | called   guesses for the next tokens:
                       ─ head 2              Lily | loved | lived   a tree of the best ranks

All heads run at once, so a draft costs one small matmul; but head 2 knows neither what head 1
predicted nor what was drawn, and is less accurate for it. A tree makes up for some of that: several
guesses at each depth, in the shape with most acceptances on the training text (`best_tree`). The
guesses are top-ranked, not sampled, so every text is the target's own; the paper's "typical
acceptance" is not used, as it changes the distribution.

    head k     logits_k = (h + silu(W_k h)) U_k^T, W_k initially 0 and U_k the target's own rows

Cost per draft: K·(D² + V'·D) numbers read. Paper: Cai et al., arXiv 2401.10774. Lab: e09b.
Shapes: B texts  T tokens  K heads  D width  V' shortlist.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush

import torch
import torch.nn.functional as F
from einops import einsum
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.inference.speculation.lessons import Lessons
from minitrain.inference.speculation.proposer import ROOT, Asked, Draft
from minitrain.model.transformer import Transformer

Branch = tuple[int, ...]  # a node, as the rank chosen at each depth of its path


class MedusaHeads(nn.Module):
    def __init__(self, target: Transformer, shortlist: Tensor, heads: int = 4) -> None:
        """`shortlist` (V',): the token ids that can be drafted."""
        super().__init__()
        rows = target.head.weight.detach()[shortlist]  # (V', D)
        self.register_buffer("shortlist", shortlist)
        self.register_buffer("own", rows.clone())
        self.inner = nn.Parameter(rows.new_zeros(heads, rows.shape[1], rows.shape[1]))
        self.outer = nn.Parameter(rows.repeat(heads, 1, 1))  # (K, V', D)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (..., D) -> logits (..., K, V')."""
        inner = einsum(hidden, self.inner, "... d, k e d -> ... k e")
        x = hidden.unsqueeze(-2) + F.silu(inner)  # (..., K, D)
        return einsum(x, self.outer, "... k d, k v d -> ... k v")

    def loss(self, lessons: Lessons) -> Tensor:
        """Mean cross-entropy with the target's distributions, one token further for each head."""
        logits = self(lessons.hidden)  # (B, T, K, V')
        said = (lessons.hidden @ self.own.T).softmax(dim=-1)  # (B, T, V'): p of the token after t
        losses = [
            F.cross_entropy(logits[:, : -k - 1, k].flatten(0, 1), said[:, k + 1 :].flatten(0, 1))
            for k in range(logits.shape[2])
        ]
        return torch.stack(losses).mean()

    @torch.no_grad()
    def accuracy(self, lessons: Lessons, ranks: int = 8) -> Tensor:
        """(K, ranks): how often each head's guess of each rank is right."""
        found = []
        best = self.shortlist[self(lessons.hidden).topk(ranks, dim=-1).indices]  # (B, T, K, ranks)
        for k in range(best.shape[2]):
            right = best[:, : -k - 2, k] == lessons.tokens[:, k + 2 :, None]
            found.append(right.flatten(0, 1).float().mean(dim=0))
        return torch.stack(found)


class Medusa:
    """`branches`: the tree's nodes, each after its parent, such as `best_tree(accuracy, nodes=12)`
    for the `heads.accuracy(lessons)`."""

    def __init__(self, heads: MedusaHeads, branches: Sequence[Branch]) -> None:
        self.heads, self.branches = heads, branches
        if not branches:
            raise InputError("a tree without nodes drafts nothing: give 1 branch or more")

    @torch.no_grad()
    def propose(self, requests: Sequence[Asked]) -> list[Draft]:
        """Drafts the tree's best nodes, up to a request's `most`."""
        return [self._tree(asked) if len(asked.hidden) else Draft() for asked in requests]

    def _tree(self, asked: Asked) -> Draft:
        branches = self.branches[: asked.most]
        ranks = 1 + max(rank for branch in branches for rank in branch)
        best = self.heads.shortlist[self.heads(asked.hidden[-1]).topk(ranks, dim=-1).indices]
        best = best.tolist()  # K of `ranks` token ids
        tokens = tuple(best[len(branch) - 1][branch[-1]] for branch in branches)
        return Draft(tokens, parents_of(branches))

    def forget(self, key: Hashable) -> None:
        pass


def best_tree(accuracy: Tensor, nodes: int) -> list[Branch]:
    """The tree of `nodes` nodes with most expected acceptances, as paths: a rank at every depth.

    accuracy (depths, ranks): how often the guess of rank r for depth d is right. Assuming
    independence, a node is reached with the product along its path, and the expected acceptances
    are the sum over nodes: the greatest products, which form a tree as no child exceeds its parent.
    """
    waiting: list[tuple[float, Branch]] = []
    depths, ranks = accuracy.shape

    def offer(path: Branch, reached: float) -> None:
        if len(path) < depths:
            for rank in range(ranks):
                heappush(waiting, (-reached * float(accuracy[len(path), rank]), (*path, rank)))

    offer((), 1.0)
    chosen: list[Branch] = []
    while waiting and len(chosen) < nodes:
        reached, path = heappop(waiting)
        chosen.append(path)
        offer(path, -reached)
    return sorted(chosen, key=lambda path: (len(path), path))


def parents_of(paths: Sequence[Branch]) -> tuple[int, ...]:
    """Each path's parent; paths follow their prefixes."""
    place = {path: node for node, path in enumerate(paths)}
    return tuple(place[path[:-1]] if path[:-1] else ROOT for path in paths)
