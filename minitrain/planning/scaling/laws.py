"""Scaling laws: the loss of a model of N parameters trained on D tokens, fitted to small runs.

    L(N, D) = E + A / N^α + B / D^β

E is the loss no model can beat (the entropy of the text); the other two terms are the cost of too
small a model and too little text. With C = 6 N D FLOPs to spend, the least loss is at
N ∝ C^(β/(α+β)) and D ∝ C^(α/(α+β)). Approach 3 of Chinchilla (Hoffmann et al. 2022,
arXiv:2203.15556): least Huber loss on log L, from a grid of starts, since the fit has many local
minima. Labs e01, e10.

Serving a model costs 2 N FLOPs a token on top of training's 6 N D, so a smaller model trained
longer reaches the same loss for less (Sardana et al. 2024, 2401.00448): `within_budget`. Earlier
work used two power laws of the budget alone, `Frontier`: Kaplan et al. 2020, N = 1.3e9 (C in
PF-days)^0.73, large models and few tokens; Chinchilla's approaches 1 and 2, N = G (C/6)^a with
a = 0.50 and 0.49, about 20 tokens a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from minitrain.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

STARTS = 8  # the best grid starts, refined by L-BFGS
EXPONENTS = np.linspace(0.05, 1.5, 30)  # the grid of starts for α and β
HUBER = 1e-3  # Chinchilla's δ: errors over 0.1% in log L count linearly, which bounds outliers


@dataclass(frozen=True)
class ScalingLaw:
    """The five constants: E and the loss in nats per token, N in parameters, D in tokens."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta

    def optimum(self, flops: float) -> Optimum:
        """The N and D of least loss for a budget of `flops` = 6 N D."""
        total = self.alpha + self.beta
        ratio = (self.alpha * self.A / (self.beta * self.B)) ** (1 / total)
        parameters = ratio * (flops / 6) ** (self.beta / total)
        tokens = flops / 6 / parameters
        return Optimum(parameters, tokens, self.loss(parameters, tokens))


@dataclass(frozen=True)
class Optimum:
    parameters: float
    tokens: float
    loss: float


# Chinchilla's own constants, and those of Besiroglu et al. 2024 (arXiv:2404.10102), who refitted
# the same runs and found that the published ones do not describe them.
CHINCHILLA = ScalingLaw(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)
CHINCHILLA_REFITTED = ScalingLaw(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658)


def fit(
    parameters: Sequence[float], tokens: Sequence[float], losses: Sequence[float]
) -> ScalingLaw:
    """The law of least Huber loss in log L. All arguments are (runs,), at least 5 runs."""
    n, d, y = _checked(parameters, tokens, losses)
    fits = [_refined(start, n, d, y) for start in _grid(n, d, y)]
    theta, _ = min(fits, key=lambda fit: fit[1])
    a, b, e, alpha, beta = theta.tolist()
    # Undo the centring: A / N^α = exp(a) (N / N₀)^-α
    A, B = (math.exp(c + s * _centre(x)) for c, s, x in ((a, alpha, n), (b, beta, d)))
    return ScalingLaw(E=math.exp(e), A=A, B=B, alpha=alpha, beta=beta)


def _checked(*columns: Sequence[float]) -> list[np.ndarray]:
    """The three columns as arrays, or an error naming what is missing."""
    n, d, y = (np.asarray(column, dtype=np.float64) for column in columns)
    if not len(n) == len(d) == len(y):
        raise InputError(
            f"a run needs three numbers: got {len(n)} parameters, {len(d)} tokens, {len(y)} losses"
        )
    if not all(np.isfinite(x).all() and (x > 0).all() for x in (n, d, y)):
        raise InputError("parameters, tokens and losses must be finite and over 0: drop the others")
    if len(set(zip(n, d))) < 5 or min(len(set(n)), len(set(d))) < 3:
        raise InputError(
            f"{len(y)} runs over {len(set(n))} sizes and {len(set(d))} lengths cannot fix five "
            "constants: add runs until there are at least 5, over 3 sizes and 3 numbers of tokens"
        )
    return [n, d, y]


def _centre(x: np.ndarray) -> float:
    """The mean of log x: centring makes the constants far less correlated."""
    return float(np.log(x).mean())


def _grid(n: np.ndarray, d: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """The best starts (a, b, e, α, β): given α and β the law is linear in E, A and B.

    For each pair of exponents, non-negative least squares on the relative error.
    """
    n, d = n / math.exp(_centre(n)), d / math.exp(_centre(d))
    found = []
    for alpha, beta in product(EXPONENTS, repeat=2):
        columns = np.stack([n**-alpha, d**-beta, np.ones_like(y)], axis=1) / y[:, None]
        weights, error = _positive_least_squares(columns)
        found.append((error, (*np.log(weights), alpha, beta)))
    found.sort(key=lambda start: start[0])
    return [np.array(theta) for _, theta in found[:STARTS]]


def _positive_least_squares(columns: np.ndarray) -> tuple[np.ndarray, float]:
    """w > 0 of least ‖columns w - 1‖². columns (runs, 3); negative values are clamped near 0."""
    free = np.ones(columns.shape[1], dtype=bool)
    weights = np.full(columns.shape[1], 1e-6)
    while free.any():
        target = 1 - columns[:, ~free] @ weights[~free]
        weights[free] = np.linalg.lstsq(columns[:, free], target, rcond=None)[0]
        if (weights[free] > 0).all():
            break
        free &= weights > 0
        weights = np.where(free, weights, 1e-6)
    return weights, float(((columns @ weights - 1) ** 2).sum())


def _refined(
    start: np.ndarray, n: np.ndarray, d: np.ndarray, y: np.ndarray
) -> tuple[Tensor, float]:
    """L-BFGS on the Huber loss of log L from one start -> (a, b, e, α, β) and its loss."""
    import torch  # `plan validate` needs only the laws, no fit: saves a second
    import torch.nn.functional as F

    log_n, log_d = (torch.tensor(np.log(x) - _centre(x)) for x in (n, d))
    log_y = torch.tensor(np.log(y))
    theta = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [theta],
        max_iter=300,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        a, b, e, alpha, beta = theta
        terms = torch.stack([a - alpha * log_n, b - beta * log_d, e.expand_as(log_n)])  # (3, runs)
        error = torch.logsumexp(terms, dim=0) - log_y
        return F.huber_loss(error, torch.zeros_like(error), delta=HUBER) / HUBER**2

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective()
        loss.backward()
        return loss

    optimizer.step(closure)
    return theta.detach(), objective().item()


# ---- training and serving budgets ----

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
        """The budget at which this model size is optimal."""
        return 6 * (parameters / self.G) ** (1 / self.a)


def fit_frontier(a: float, rows: list[tuple[float, float]]) -> Frontier:
    """G of (parameters, tokens) on the frontier with exponent a: the mean of logs."""
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
    """Golden-section search for the minimum of a unimodal function."""
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(steps):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if function(left) < function(right):
            high = right
        else:
            low = left
    return (low + high) / 2
