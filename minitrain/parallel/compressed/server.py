"""A parameter server: workers pull the weights, push gradients, and need not wait for each other.

    synchronous     a round ends with its slowest worker
    with backups    n + b workers start, the first n to finish count, the last b are dropped
    asynchronous    each push moves the weights at once; other pushes have moved them since the pull
    bounded         asynchronous, but no worker is more than s steps ahead of the slowest (SSP)

*Staleness* is the number of pushes between a worker's pull and its own push. n - 1 others push once
in the meantime if all are equally fast: mean staleness is n - 1 (Little's law: n gradients under
way, one leaves at a time). A stale gradient is that of older weights, so the rate has to fall.
Time here is emulated: real gradients, and seconds as given for each worker's steps.
Cost: 2 · 4P bytes a push, all of them through the server's link.
Papers: DistBelief, Dean et al. 2012; SSP, Ho et al. 2013; backup workers, Chen et al. 2016
(arXiv:1604.00981); staleness-aware, Zhang et al. 2016 (arXiv:1511.05950). Lab: e02g_slow_networks.
P parameters, n workers, b backups.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minitrain.errors import InputError, check_whole

GradientOf = Callable[[Tensor, int, int], Tensor]  # weights, worker, its step -> gradient
SecondsOf = Callable[[int, int], float]  # worker, its step -> seconds that the step takes


@dataclass(frozen=True)
class Update:
    """One move of the weights: when, by whose gradient (-1: several), and how stale it was."""

    seconds: float
    worker: int
    staleness: int


def unscaled(staleness: int) -> float:
    """Naive: a stale gradient counts like a fresh one."""
    return 1.0


def staleness_aware(staleness: int) -> float:
    """Divides the rate by the staleness; a fresh gradient, or one a single push old, counts whole.

    With n workers the n pushes of a round then move the weights about as far as one mean gradient.
    """
    return 1 / max(1, staleness)


class ParameterServer:
    """The weights, (P,), and the number of pushes that have moved them."""

    def __init__(
        self, weights: Tensor, lr: float, rule: Callable[[int], float] = staleness_aware
    ) -> None:
        self.weights, self.lr, self.rule = weights.clone(), lr, rule
        self.version = 0

    def pull(self) -> tuple[Tensor, int]:
        """A copy, since the weights move while the worker computes, and its version."""
        return self.weights.clone(), self.version

    def push(self, gradient: Tensor, version: int) -> int:
        """Applies the gradient of the weights of `version`; returns its staleness."""
        staleness = self.version - version
        if staleness < 0:
            raise InputError(f"version {version} has not been pulled yet: it is {self.version} now")
        self.weights -= self.lr * self.rule(staleness) * gradient
        self.version += 1
        return staleness


def synchronous(
    server: ParameterServer,
    gradient_of: GradientOf,
    seconds_of: SecondsOf,
    workers: int,
    rounds: int,
    backups: int = 0,
) -> list[Update]:
    """Rounds of the mean gradient of the `workers` fastest of `workers + backups`."""
    check_whole("workers", workers)
    if backups < 0:
        raise InputError(
            f"backups={backups}: the number of workers beside those that count, from 0"
        )
    now, updates = 0.0, []
    for step in range(rounds):
        weights, version = server.pull()
        took = sorted((seconds_of(w, step), w) for w in range(workers + backups))[:workers]
        gradients = [gradient_of(weights, worker, step) for _, worker in took]
        staleness = server.push(torch.stack(gradients).mean(dim=0), version)
        now += took[-1][0]
        updates.append(Update(now, -1, staleness))
    return updates


def asynchronous(
    server: ParameterServer,
    gradient_of: GradientOf,
    seconds_of: SecondsOf,
    workers: int,
    pushes: int,
    bound: int | None = None,
) -> list[Update]:
    """Every worker pulls, computes and pushes on its own, `pushes` times in all.

    bound: a worker that is this many steps ahead of the slowest waits until that one has pushed.
    None: it never waits. 0: all wait for all, after every step.
    """
    check_whole("workers", workers)
    if bound is not None and bound < 0:
        raise InputError(f"bound={bound}: steps that a worker may be ahead, 0 or more, or None")
    steps = [0] * workers  # pushed so far, by worker
    flying: list[tuple[float, int, Tensor, int]] = []  # ends, worker, the weights and version
    waiting, updates = list(range(workers)), []
    now = 0.0
    while len(updates) < pushes:
        for worker in may_start(waiting, steps, bound):
            waiting.remove(worker)
            weights, version = server.pull()
            ends = now + seconds_of(worker, steps[worker])
            heapq.heappush(flying, (ends, worker, weights, version))
        now, worker, weights, version = heapq.heappop(flying)
        staleness = server.push(gradient_of(weights, worker, steps[worker]), version)
        steps[worker] += 1
        waiting.append(worker)
        updates.append(Update(now, worker, staleness))
    return updates


def may_start(waiting: Sequence[int], steps: Sequence[int], bound: int | None) -> list[int]:
    """The idle workers that are at most `bound` steps ahead of the slowest."""
    slowest = min(steps)
    return [w for w in waiting if bound is None or steps[w] - slowest <= bound]


def expected_round(workers: int, backups: int, mean: float, least: float = 0.0) -> float:
    """Seconds of a synchronous round whose steps take `least` + an exponential time of this mean.

    The n-th fastest of n + b: least + mean · (1/(b+1) + … + 1/(n+b)).
    """
    return least + mean * sum(1 / k for k in range(backups + 1, workers + backups + 1))
