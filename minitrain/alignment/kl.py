"""The KL from policy to reference, estimated from the policy's own samples, and its gradient.

    d = log ref - log pi     k1 = -d      k2 = d^2 / 2      k3 = e^d - 1 - d

k1 and k3 have the mean KL, k2 is biased; k3 is never negative, and no longer has the smaller
variance once the policies are far apart. The gradient *of the value*, which backward takes when the
estimate is a term of the loss, is another matter:

    k1: 0     k2: grad KL(pi || ref)     k3: grad KL(ref || pi)     ratio·k3: grad KL(pi || ref)

Even a right gradient token by token leaves out what a token does to the KL of later states; only
k1 in the *reward* optimises the KL of whole answers. Cost: O(B T), and the reference's pass.
Sources: Schulman, joschu.net/blog/kl-approx.html; arXiv 2512.21852; adaptive beta: 1909.08593
(section 2.2). Lab: e13_alignment. Shapes: B answers  T tokens  V outcomes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from minitrain.errors import InputError

Estimator = Callable[[Tensor, Tensor], Tensor]  # logp, ref_logp -> the estimate of each sample


def k1(logp: Tensor, ref_logp: Tensor) -> Tensor:
    return logp - ref_logp


def k2(logp: Tensor, ref_logp: Tensor) -> Tensor:
    return 0.5 * (logp - ref_logp).square()


def k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    return torch.expm1(ref_logp - logp) - (ref_logp - logp)


def k3_by_ratio(logp: Tensor, ref_logp: Tensor, old_logp: Tensor | None = None) -> Tensor:
    """rho·k3: weighted by the ratio to the policy that drew the sample, on policy with value 1."""
    old_logp = logp.detach() if old_logp is None else old_logp
    return (logp - old_logp).exp() * k3(logp, ref_logp)


def k3_straight_through(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """k3's value with k2's gradient."""
    value, gradient = k3(logp, ref_logp), k2(logp, ref_logp)
    return gradient + (value - gradient).detach()


ESTIMATORS: dict[str, Estimator] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "ratio k3": k3_by_ratio,
    "straight-through k3": k3_straight_through,
}


class Expected(NamedTuple):
    """Of an estimator over all outcomes, weighted by the policy's own probabilities."""

    mean: float
    sd: float
    gradient: Tensor  # (V,), with respect to the policy's logits


def expected(estimator: Estimator, logits: Tensor, ref_logits: Tensor) -> Expected:
    """By enumeration: the mean, standard deviation and mean gradient of infinitely many samples.

    The samples' probabilities are constants: backward sees an estimate, not where it was drawn.
    """
    logits = logits.detach().requires_grad_()
    logp, ref_logp = logits.log_softmax(0), ref_logits.log_softmax(0)
    weights = logp.detach().exp()
    estimates = estimator(logp, ref_logp)
    mean = (weights * estimates).sum()
    (gradient,) = torch.autograd.grad(mean, logits)
    variance = (weights * (estimates - mean).square()).sum()
    return Expected(mean.item(), variance.sqrt().item(), gradient)


def kl_divergence(logits: Tensor, other_logits: Tensor) -> Tensor:
    """(..., V) each -> KL(softmax(logits) || softmax(other_logits)), (...), exact."""
    logp, other = logits.log_softmax(-1), other_logits.log_softmax(-1)
    return (logp.exp() * (logp - other)).sum(-1)


def per_token_rewards(
    scores: Tensor, logp: Tensor, ref_logp: Tensor, mask: Tensor, beta: float
) -> Tensor:
    """scores (B,), the others (B, T) -> rewards (B, T): -beta·k1 on every token that counts, and
    the answer's score on its last one, so that their sum is score - beta·log(pi/ref) of the answer.
    """
    rewards = -beta * k1(logp, ref_logp) * mask
    rows = torch.arange(len(mask), device=mask.device)
    rewards[rows, last_token(mask)] += scores
    return rewards


def last_token(mask: Tensor) -> Tensor:
    """mask (B, T) -> each row's last position that counts (B,)."""
    if not mask.any(dim=1).all():
        row = int((~mask.bool()).all(dim=1).nonzero()[0])
        raise InputError(f"answer {row} has no token that counts: give its end token at least")
    positions = torch.arange(mask.shape[1], device=mask.device)
    return (mask.bool() * positions).amax(dim=1)


@dataclass
class AdaptiveKL:
    """beta <- beta·(1 + clip(KL/target - 1, ±0.2)·answers/horizon): a controller for a KL one can
    afford instead of a beta one has to guess."""

    beta: float = 0.15
    target: float = 6.0
    horizon: int = 10_000

    def update(self, kl: float, answers: int) -> float:
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.beta *= 1 + error * answers / self.horizon
        return self.beta
