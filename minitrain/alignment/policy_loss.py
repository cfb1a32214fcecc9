"""PPO's clipped losses, token by token, and four ways to average them over a batch.

    policy   -min(rho A, clip(rho, 1 - e, 1 + e) A),  rho = exp(logp - old logp)
    value    max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2

Where A > 0 and rho > 1 + e, or A < 0 and rho < 1 - e, the token has moved far enough: its gradient
is 0. In the first pass over an answer rho is exactly 1, unless dropout is on, or temperature or
positions differ from the sampler's. Cost: O(B T), and one more log-probability a token, kept.
Papers: PPO, arXiv 1707.06347 (eq. 7); dual clip, 1912.09729 (eq. 5); DAPO, 2503.14476 (section
3.3); Dr. GRPO, 2503.20783. Lab: e13_alignment. Shapes: B answers  T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minitrain.errors import InputError


def policy_loss_naive(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    clip: float = 0.2,
    clip_high: float | None = None,
    dual_clip: float | None = None,
) -> Tensor:
    """The four quadrants, written out for each token."""
    losses = []
    high = clip if clip_high is None else clip_high
    for new, old, a in zip(logp.flatten(), old_logp.flatten(), advantages.flatten()):
        ratio = (new - old).exp()
        if a > 0:
            ratio = ratio if ratio <= 1 + high else 1 + high
        elif ratio < 1 - clip:
            ratio = 1 - clip
        elif dual_clip is not None and ratio > dual_clip:
            ratio = dual_clip
        losses.append(-a * ratio)
    return torch.stack(losses).view(logp.shape)


def policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    clip: float = 0.2,
    clip_high: float | None = None,
    dual_clip: float | None = None,
) -> Tensor:
    """logp, old_logp, advantages (B, T) -> the loss of each token (B, T).

    `clip_high`: another bound upwards (DAPO's 0.28 lets rare tokens grow). `dual_clip` c bounds the
    loss of a token with A < 0 by c |A|: else one with rho = 50 would outweigh the whole batch.
    """
    high = clip if clip_high is None else clip_high
    if not (0 <= clip < 1 and high >= 0) or (dual_clip is not None and dual_clip <= 1 + high):
        raise InputError(
            f"clip {clip}, clip_high {high}, dual_clip {dual_clip}: give a clip from 0 to 1, such "
            "as 0.2, and a dual_clip above 1 + clip_high, such as 3, or None"
        )
    ratio = (logp - old_logp).exp()
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + high))
    if dual_clip is not None:
        loss = torch.where(advantages < 0, loss.minimum(-advantages * dual_clip), loss)
    return loss


def clipped(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, clip: float, clip_high: float | None = None
) -> Tensor:
    """(B, T) bool: the tokens whose gradient the clip has removed."""
    ratio, high = (logp - old_logp).exp(), clip if clip_high is None else clip_high
    return ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - clip))


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None = 0.2
) -> Tensor:
    """(B, T) each -> half the larger of two squared errors (B, T): with the new value, and with
    the new one held within `clip` of the old."""
    loss = (values - returns).square()
    if clip is not None:
        near = values.clamp(old_values - clip, old_values + clip)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss


@dataclass(frozen=True)
class Totals:
    """Of all microbatches on all ranks, so that their shares add up to the loss of the batch."""

    answers: int
    tokens: int
    max_length: int

    @staticmethod
    def of(*masks: Tensor, max_length: int | None = None) -> Totals:
        longest = max(mask.shape[1] for mask in masks)
        tokens = sum(int(mask.sum()) for mask in masks)
        return Totals(sum(map(len, masks)), tokens, max_length or longest)


def mean_of_means(loss: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """GRPO: each answer's mean over its tokens, then the mean over answers. A token of a long
    answer weighs less, so that long wrong answers are punished less than short ones."""
    return ((loss * mask).sum(1) / mask.sum(1).clamp(min=1)).sum() / totals.answers


def mean_of_tokens(loss: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """DAPO: every token of the batch weighs the same."""
    return (loss * mask).sum() / totals.tokens


def mean_in_microbatch(loss: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """BNPO: the same within a microbatch, whose share is that of its answers. With unequal lengths
    the result depends on how the batch is cut."""
    return (loss * mask).sum() / mask.sum().clamp(min=1) * len(mask) / totals.answers


def sum_over_constant(loss: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """Dr. GRPO: the sum over one constant, answers times the longest allowed length."""
    return (loss * mask).sum() / (totals.answers * totals.max_length)


AGGREGATIONS = {
    "grpo": mean_of_means,
    "dapo": mean_of_tokens,
    "bnpo": mean_in_microbatch,
    "dr_grpo": sum_over_constant,
}
