"""Speculation as lab e09b writes it, each idea in a few lines.

    verify            sampled drafts: accepted, or replaced so that the distribution is the target's
    ngram_draft       the continuation of the last occurrence of the text's final tokens
    best_length       tokens per round over its cost, for every length
    tree_attention    the tokens that each node of a draft tree reads, and its position
    accepted_path     the branch that the target would have generated
    medusa_loss       heads that predict two, three, … tokens ahead

`verification`, `lessons` and `medusa` have the rest: drafts of several lengths in a batch,
shortlists of tokens, the tree's best shape.
Shapes: B requests  g drafted tokens  V vocabulary  n nodes  T tokens  D width  K heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def verify(
    p: Tensor, q: Tensor, drafts: Tensor, coins: Tensor, pick: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """p (B, g + 1, V), q (B, g, V), drafts (B, g) int64 drawn from q, coins (B, g) in [0, 1)
    -> tokens (B, g + 1), -1 after the new text, and kept (B,), the number of accepted drafts.

    `pick(weights)` draws a token for each row of weights, which need not sum to 1.
    """
    rows, index = torch.arange(len(p)), drafts[:, :, None]
    target, draft = p[:, :-1].gather(2, index)[:, :, 0], q.gather(2, index)[:, :, 0]  # (B, g)
    accepted = coins * draft < target  # undivided: p = 0 is never kept
    kept = accepted.long().cumprod(dim=1).sum(dim=1)  # (B,): up to the first that is not
    q = torch.nn.functional.pad(q, (0, 0, 0, 1))  # nothing is taken off a bonus token's p
    own = p[rows, kept]  # (B, V)
    rest = (own - q[rows, kept]).clamp(min=0)
    rest = torch.where(rest.sum(dim=1, keepdim=True) > 0, rest, own)
    tokens = torch.nn.functional.pad(drafts, (0, 1))  # (B, g + 1)
    tokens[rows, kept] = pick(rest)
    behind = torch.arange(tokens.shape[1]) > kept[:, None]
    return tokens.masked_fill(behind, -1), kept


def ngram_draft(tokens: Sequence[int], most: int, longest: int = 3) -> list[int]:
    """The tokens, at most `most`, that followed an earlier occurrence of the text's end; [] if
    there is none.

    It searches for the last `longest` tokens, then fewer, down to one, and takes the latest match.
    """
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            after = start + size
            if tokens[start:after] == tokens[-size:]:
                return list(tokens[after : after + most])
    return []


def best_length(
    acceptance: float, draft_cost: float, passes: Sequence[float]
) -> tuple[int, list[float]]:
    """The fastest draft length (the shortest if tied), and the speed-up of each length.

    passes[g]: the pass over g + 1 tokens; both costs in the target's passes over one token.
    """
    speeds = []
    for length, seconds in enumerate(passes):
        tokens = sum(acceptance**i for i in range(length + 1))
        speeds.append(tokens / (length * draft_cost + seconds))
    return speeds.index(max(speeds)), speeds


def tree_attention(parents: Sequence[int], read: int) -> tuple[Tensor, Tensor]:
    """n parents, -1 for a node that follows the text -> seen (n, read + n) bool, positions (n,).

    `read` tokens of text come before the tree; position 0 is the text's first.
    """
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] |= seen[parent]
    text = torch.ones(len(parents), read, dtype=torch.bool)
    return torch.cat((text, seen), dim=1), read + seen.sum(dim=1) - 1


def accepted_path(
    tokens: Sequence[int], parents: Sequence[int], choices: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The accepted nodes in order, and the new tokens: theirs, then the target's next.

    choices (n + 1,): the target's own token after the text, then after each node.
    """
    children = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens))}
    path, at = [], -1
    while (at, choices[at + 1]) in children:
        at = children[at, choices[at + 1]]
        path.append(at)
    return path, [*(tokens[node] for node in path), choices[at + 1]]


def medusa_loss(
    hidden: Tensor, inner: Tensor, outer: Tensor, tokens: Tensor, decay: float = 0.8
) -> Tensor:
    """hidden (B, T, D), inner (K, D, D), outer (K, V, D), tokens (B, T) -> Σ decay^k L_k, k from 1.

    Head k's logits at position t, (h + silu(W_k h)) U_k^T, predict token t + 1 + k; L_k is the mean
    cross-entropy over all positions that have one. No gradient reaches `hidden`.
    """
    hidden, total = hidden.detach(), torch.zeros(())
    for k, (first, second) in enumerate(zip(inner, outer), start=1):
        x = hidden[:, : -k - 1]  # the last k + 1 places have no such token
        x = x + torch.nn.functional.silu(x @ first.t())
        logits, wanted = x @ second.t(), tokens[:, k + 1 :]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        total = total + decay**k * loss
    return total
