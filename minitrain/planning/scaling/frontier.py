"""Compute-optimal model size and tokens for a training budget, and for one that includes inference.

Training costs 6 N D FLOPs, each token served 2 N. Three roads to the best N and D:

    Kaplan et al. 2020            N = 1.3e9 (C in PF-days)^0.73: large models, few tokens
    Chinchilla, approaches 1, 2   N = G (C/6)^a with a = 0.50, 0.49: about 20 tokens a parameter
    Chinchilla, approach 3        the least of L(N, D) = E + A/N^α + B/D^β on 6 N D = C

(Hoffmann et al. 2022, arXiv 2203.15556). Who serves the model pays for N again with each token, so
a smaller model trained longer reaches the same loss for less (Sardana et al. 2024, 2401.00448).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from minitrain.errors import InputError
from minitrain.planning.scaling.laws import CHINCHILLA_REFITTED, Optimum, ScalingLaw

PF_DAY = 1e15 * 86400


@dataclass(frozen=True)
class Frontier:
    """N = G (C/6)^a, D = (C/6)^(1-a) / G."""

    a: float
    G: float

    def parameters(self, flops: float) -> float:
        return self.G * (flops / 6) ** self.a

    def tokens(self, flops: float) -> float:
        return flops / 6 / self.parameters(flops)

    def flops_for(self, parameters: float) -> float:
        """The budget for which a model of this size is best."""
        return 6 * (parameters / self.G) ** (1 / self.a)


def fit_frontier(a: float, rows: list[tuple[float, float]]) -> Frontier:
    """G of (parameters, tokens) on the frontier with exponent a: the mean in logs."""
    logs = [math.log(n) - a * math.log(n * d) for n, d in rows]
    return Frontier(a, math.exp(sum(logs) / len(logs)))


KAPLAN = Frontier(0.73, 1.3e9 * (6 / PF_DAY) ** 0.73)


def within_budget(
    total_flops: float, served_tokens: float, law: ScalingLaw = CHINCHILLA_REFITTED
) -> Optimum:
    """The N and D of least loss when training and serving share `total_flops`."""
    if total_flops <= 0 or served_tokens < 0:
        raise InputError("the budget must be over 0 FLOPs, and served tokens 0 or more")
    largest = total_flops / (2 * served_tokens) if served_tokens else total_flops / 6
    smallest = min(1e3, largest / 2)

    def tokens(n: float) -> float:
        return (total_flops - 2 * n * served_tokens) / (6 * n)

    def loss(log_n: float) -> float:
        n = math.exp(log_n)
        return law.loss(n, max(tokens(n), 1e-9))

    n = math.exp(least(loss, math.log(smallest), math.log(largest * (1 - 1e-9))))
    return Optimum(n, tokens(n), law.loss(n, tokens(n)))


def least(function, low: float, high: float, steps: int = 200) -> float:
    """Golden-section search for the minimum of a function with one valley."""
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(steps):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if function(left) < function(right):
            high = right
        else:
            low = left
    return (low + high) / 2
