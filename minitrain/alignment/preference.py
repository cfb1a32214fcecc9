"""Losses on pairs of answers, without a reward model and without sampling.

The best policy under a KL penalty is pi* = ref·e^{r/beta}/Z, so r = beta·log(pi*/ref) + a constant,
which cancels in a pair: put into Bradley-Terry, the reward model *is* the policy.

    DPO    -log sigmoid(beta·h),   h = log(pi/ref)(chosen) - log(pi/ref)(rejected)

At the start pi = ref: h = 0, and the loss is log 2. Log-probabilities are *sums* over an answer's
tokens: their means are another reward. Cost: forward and backward of two answers, and two passes of
the reference, which can be kept. Papers: DPO, arXiv 2305.18290 (eq. 7); robust DPO, 2403.00409
(eq. 12); IPO, 2310.12036 (eq. 17). Lab: e13_alignment. Shapes: B pairs  T tokens  V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.errors import InputError


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """logits (B, T, V), tokens (B, T) -> log p of each token after the first (B, T - 1), in
    float32 at least: position t of the logits predicts token t + 1."""
    logits = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32))
    chosen = logits.gather(-1, tokens[:, 1:, None])[..., 0]
    return chosen - logits.logsumexp(dim=-1)


def sequence_log_probability(logp: Tensor, mask: Tensor) -> Tensor:
    """(B, T) each -> the log-probability of each answer (B,): the sum over its tokens."""
    return torch.where(mask.bool(), logp, 0.0).sum(dim=1)


def margin(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    """h (B,), from sequence log-probabilities (B,)."""
    return (chosen - ref_chosen) - (rejected - ref_rejected)


def dpo_loss(
    chosen: Tensor,
    rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Sequence log-probabilities (B,) -> the loss of each pair (B,).

    `label_smoothing` e is cDPO: a label is believed with 1 - e, so the margin stops growing at
    log((1 - e)/e)/beta. It does not undo flipped labels; `robust_dpo_loss` does.
    """
    _check(beta, label_smoothing)
    h = beta * margin(chosen, rejected, ref_chosen, ref_rejected)
    return -(1 - label_smoothing) * F.logsigmoid(h) - label_smoothing * F.logsigmoid(-h)


def robust_dpo_loss(
    chosen: Tensor,
    rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    beta: float = 0.1,
    flipped: float = 0.1,
) -> Tensor:
    """Unbiased where a share `flipped` of the labels is wrong: its expectation over flips is DPO's
    loss on the clean labels."""
    _check(beta, flipped)
    h = beta * margin(chosen, rejected, ref_chosen, ref_rejected)
    return -((1 - flipped) * F.logsigmoid(h) - flipped * F.logsigmoid(-h)) / (1 - 2 * flipped)


def ipo_loss(
    chosen: Tensor,
    rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    beta: float = 0.1,
) -> Tensor:
    """(h - 1/(2 beta))^2: a margin to reach, not one to widen forever. For answers of unequal
    length give log-probabilities divided by the number of tokens, as TRL and the authors do."""
    _check(beta, 0.0)
    return (margin(chosen, rejected, ref_chosen, ref_rejected) - 1 / (2 * beta)).square()


def _check(beta: float, share: float) -> None:
    if not beta > 0 or not 0 <= share < 0.5:
        raise InputError(
            f"beta is {beta} and the share of wrong labels {share}: give a beta above 0, such as "
            "0.1, and a share from 0 to below 0.5"
        )
