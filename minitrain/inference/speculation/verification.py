"""Verification: drafted tokens are accepted or replaced, with exactly the target's distribution.

A draft model sampled g tokens from its own distributions q_1 … q_g. One pass of the target over
them gives p_1 … p_g, and p_{g+1} after the last. From the left, x_i is accepted with probability

    min(1, p_i(x_i) / q_i(x_i)).      The first rejected one is replaced by a draw from
    (p_i - q_i)+ / Σ (p_i - q_i)+     (the "recovered" token), and what follows it is dropped.

If all are accepted, p_{g+1} gives one more, the "bonus" token: a pass gives 1 to g + 1 tokens. Why
it is exact: x is output at i as an accepted draft with probability q(x)·min(1, p/q) = min(p, q),
and as a replacement with P(reject)·(p - q)+ / Σ (p - q)+, where P(reject) = 1 - Σ min(p, q) =
Σ (p - q)+: together min(p, q) + (p - q)+ = p(x). It holds for any q; a bad draft only costs time. p
and q are the distributions really sampled from: after temperature, top-k and top-p, in both. At
temperature 0 they are 1 for one token, and the rule accepts what the target would have generated.

Papers: Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318.
Shapes: B requests  g drafted tokens  V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.sampling import draw

NOTHING = -1  # padding for requests with fewer tokens than others


def verify_naive(
    p: Tensor, q: Tensor, drafts: list[int], generator: torch.Generator | None = None
) -> list[int]:
    """One request: p (g + 1, V), q (g, V), g drafts -> the accepted ones and one more token."""
    for i, draft in enumerate(drafts):
        coin = torch.rand((), generator=generator)
        if coin * q[i, draft] < p[i, draft]:
            continue
        residual = (p[i] - q[i]).clamp(min=0)
        recovered = torch.multinomial(residual / residual.sum(), 1, generator=generator)
        return [*drafts[:i], int(recovered)]
    bonus = torch.multinomial(p[len(drafts)], 1, generator=generator)
    return [*drafts, int(bonus)]


def verify(
    p: Tensor, q: Tensor, drafts: Tensor, uniforms: Tensor, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`verify_naive` for B requests: p (B, g + 1, V), q (B, g, V), drafts (B, g) int64 from q;
    `uniforms` (B, g + 1) in [0, 1), the only randomness: one for each draft and one for the last
    token. `lengths` (B,): the number of drafts of each request, if fewer than g.

    -> tokens (B, g + 1), the first `kept` + 1 of which are each request's new text, the others -1;
    and kept (B,), the number of accepted drafts.
    """
    if lengths is None:
        lengths = torch.full((len(drafts),), drafts.shape[1], device=p.device)
    requests = torch.arange(len(p), device=p.device)
    index = rearrange(drafts, "b g -> b g 1")
    target, draft = (rearrange(z.gather(2, index), "b g 1 -> b g") for z in (p[:, :-1], q))
    place = torch.arange(p.shape[1], device=p.device)  # (g + 1,)
    real = place[:-1] < rearrange(lengths, "b -> b 1")  # (B, g)
    _check_drawn(draft, real)
    accepted = (uniforms[:, :-1] * draft < target) & real  # no division: p = 0 is never accepted
    kept = accepted.long().cumprod(dim=1).sum(dim=1)  # (B,): up to the first rejection

    q = F.pad(q, (0, 0, 0, 1))  # a place for the bonus token
    rest = residual(p[requests, kept], q[requests, kept], kept < lengths)
    last = rearrange(draw(rest.log(), uniforms[:, -1]), "b -> b 1")
    end = rearrange(kept, "b -> b 1")
    tokens = F.pad(drafts, (0, 1)).masked_fill(place > end, NOTHING).scatter(1, end, last)
    return tokens, kept


def residual(p: Tensor, q: Tensor, rejected: Tensor) -> Tensor:
    """p, q (B, V), rejected (B,) -> (B, V): the unnormalised distribution of the last token.

    (p - q)+ after a rejection, p itself for a bonus token. If only rounding caused the rejection,
    since p equals q, the difference is 0, and p is used, which is also right.
    """
    rest = (p - q).clamp(min=0)
    use = rejected & (rest.sum(dim=1) > 0)
    return torch.where(rearrange(use, "b -> b 1"), rest, p)


def _check_drawn(probability: Tensor, real: Tensor) -> None:
    if (real & (probability <= 0)).any():
        raise InputError(
            "a draft has probability 0 in q, and cannot have been drawn from it: give q after the "
            "same temperature, top-k and top-p as the draw, and no q for tokens that were picked"
        )
