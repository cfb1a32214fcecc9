"""The parameter server: staleness by Little's law, bounds, backups, and what a stale step costs."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.parallel.compressed.server import (
    ParameterServer,
    asynchronous,
    expected_round,
    staleness_aware,
    synchronous,
    unscaled,
)

SCALES = torch.tensor([1.0, 0.1], dtype=torch.float64)


def quadratic(weights, worker, step):
    """The gradient of Σ a x² / 2, the same for every worker."""
    return SCALES * weights


def server(lr=0.1, rule=unscaled):
    return ParameterServer(torch.ones(2, dtype=torch.float64), lr, rule)


def exponential(seed, least=0.0):
    dice = random.Random(seed)
    return lambda worker, step: least + dice.expovariate(1.0)


@given(workers=st.integers(1, 9), rounds=st.integers(2, 6))
@settings(max_examples=30, deadline=None)
def test_equal_speeds_make_every_gradient_workers_minus_one_old(workers, rounds):
    updates = asynchronous(server(), quadratic, lambda w, s: 1.0, workers, workers * rounds)
    assert {u.staleness for u in updates[workers:]} <= {workers - 1}
    assert [u.staleness for u in updates[:workers]] == list(range(workers))
    assert [u.seconds for u in updates] == [1.0 + i // workers for i in range(workers * rounds)]


@pytest.mark.parametrize("workers", [2, 5])
def test_the_mean_is_workers_minus_one_at_any_speeds(workers):
    """Little's law: each push is waited through by every gradient under way but its own."""
    seconds = exponential(0)
    slow = lambda worker, step: seconds(worker, step) * (4 if worker == 0 else 1)  # noqa: E731
    updates = asynchronous(server(0.001), quadratic, slow, workers, 4000)
    mean = sum(u.staleness for u in updates) / len(updates)
    assert mean == pytest.approx(workers - 1, abs=0.02)
    assert max(u.staleness for u in updates) > 2 * workers


@given(workers=st.integers(1, 6), bound=st.integers(0, 4), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_no_worker_is_further_ahead_than_the_bound(workers, bound, seed):
    updates = asynchronous(server(), quadratic, exponential(seed), workers, 60, bound)
    steps = [0] * workers
    for update in updates:
        steps[update.worker] += 1
        assert max(steps) - min(steps) <= bound + 1  # the step that it was allowed to begin
        assert update.staleness <= (workers - 1) * (2 * bound + 1)
    if bound == 0:
        assert max(steps) - min(steps) <= 1


def test_a_bound_costs_time_and_none_costs_staleness():
    slow = lambda seed: lambda worker, step: 5.0 if worker == 0 else 1.0  # noqa: E731
    free = asynchronous(server(0.01), quadratic, slow(0), 4, 200)
    held = asynchronous(server(0.01), quadratic, slow(0), 4, 200, bound=2)
    assert max(u.staleness for u in free) == 15 and max(u.staleness for u in held) < 15
    assert held[-1].seconds > 2 * free[-1].seconds


def test_one_worker_is_gradient_descent():
    own = server(0.3)
    asynchronous(own, quadratic, lambda w, s: 1.0, 1, 5)
    assert torch.allclose(own.weights, (1 - 0.3 * SCALES) ** 5)
    rounds = server(0.3)
    updates = synchronous(rounds, quadratic, lambda w, s: w + 1.0, 3, 5)
    assert torch.allclose(rounds.weights, own.weights) and updates[-1].seconds == 15
    assert {u.staleness for u in updates} == {0}


def test_a_rate_that_one_worker_bears_diverges_with_eight_unless_it_falls():
    lengths = {}
    for rule in (unscaled, staleness_aware):
        own = server(1.0, rule)
        asynchronous(own, quadratic, lambda w, s: 1.0, 8, 400)
        lengths[rule] = own.weights.abs().max().item()
    assert lengths[unscaled] > 1e6 and lengths[staleness_aware] < 1e-2


def test_weights_that_were_pulled_do_not_move():
    own = server()
    weights, version = own.pull()
    own.push(torch.ones(2), version)
    assert torch.equal(weights, torch.ones(2).double()) and own.push(torch.ones(2), version) == 1
    with pytest.raises(InputError, match="has not been pulled"):
        own.push(torch.ones(2), 7)


@pytest.mark.parametrize("workers, backups", [(4, 0), (4, 1), (8, 3)])
def test_rounds_take_the_order_statistics_mean(workers, backups):
    updates = synchronous(
        server(0.0), quadratic, exponential(1, 2.0), workers, 4000, backups=backups
    )
    mean = updates[-1].seconds / len(updates)
    assert mean == pytest.approx(expected_round(workers, backups, 1.0, 2.0), rel=0.02)


def test_backups_drop_the_slowest_and_count_only_those_that_were_in_time():
    seen = []

    def note(weights, worker, step):
        seen.append(worker)
        return quadratic(weights, worker, step)

    updates = synchronous(server(), note, lambda w, s: 10.0 if w == 1 else w + 1.0, 3, 2, backups=1)
    assert sorted(seen) == [0, 0, 2, 2, 3, 3] and updates[-1].seconds == 8


@pytest.mark.parametrize(
    "call",
    [
        lambda: synchronous(server(), quadratic, exponential(0), 0, 1),
        lambda: synchronous(server(), quadratic, exponential(0), 2, 1, backups=-1),
        lambda: asynchronous(server(), quadratic, exponential(0), 2, 1, bound=-1),
    ],
)
def test_what_cannot_work_is_refused(call):
    with pytest.raises(InputError):
        call()
