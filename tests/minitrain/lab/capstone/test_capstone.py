"""The scores of lab e15: best plans are best, bounds hold, no policy beats the clairvoyant."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from minitrain.errors import InputError
from minitrain.lab.capstone import board, incidents, pipelines, plans, reference
from minitrain.lab.capstone.cases import EVEN, PIPELINES, PLANS, TRACES
from minitrain.lab.capstone.incidents import Trace, clairvoyant, goodput
from minitrain.lab.capstone.pipelines import Pipeline, clock_of, made
from minitrain.parallel.pipeline.schedules import zero_bubble


@pytest.mark.full
@pytest.mark.parametrize("case", PLANS, ids=lambda case: case.name)
def test_best_is_the_fastest_of_all(case):
    found = plans.exhaustive(case)
    assert plans.seconds_of(case, found) == pytest.approx(plans.seconds_of(case, case.best))
    assert plans.ratio(case, found) == 1


def test_a_plan_that_does_not_fit_gets_nothing_and_tries_are_counted():
    case = replace(PLANS[4])
    large = next(plan for plan in case.plans if not case.fits(plan))
    assert plans.ratio(case, large) == 0 == plans.ratio(case, replace(case.best, micro_batch=3))
    for _ in range(plans.TIMINGS):
        case.seconds(case.best)
    with pytest.raises(RuntimeError, match="no more"):
        case.seconds(case.best)


def test_no_schedule_is_below_the_bound_and_zero_bubble_is_at_it():
    for _ in range(60):
        seconds = tuple(
            tuple(random.uniform(0.2, 3) for _ in "FBW") for _ in range(random.randint(1, 5))
        )
        case = Pipeline("", seconds, random.randint(1, 9), random.randint(1, 6), random.random())
        clock = clock_of(case, made(case, reference.schedule(case)))
        assert clock.makespan >= reference.lower_bound(case) - 1e-9
    case = PIPELINES[0]
    zb = [[(o.kind, o.microbatch) for o in rank] for rank in zero_bubble(4, 8).ranks]
    assert pipelines.ratio(case, zb, reference.lower_bound(case)) == 1


@pytest.mark.parametrize(
    "ranks, said",
    [
        ([[("F", 0), ("B", 0), ("W", 0)]], "lists for 2 ranks"),
        ([[("F", 0), ("B", 0)]] * 2, "0 times"),
        ([[("B", 0), ("F", 0), ("W", 0)]] * 2, "deadlock"),
    ],
)
def test_what_is_no_schedule_is_refused(ranks, said):
    with pytest.raises(InputError, match=said):
        made(Pipeline("", (EVEN,) * 2, 1, live=1), ranks)


def test_goodput_of_a_trace_that_is_counted_by_hand():
    """Saves of 10 s after each 90: the failure at 150 loses 50 s, then the run is down to 250; from
    400 on a step takes 1.25 times as long. So 90 are saved at 100; from 250 on 90 at 350, 50 + 32
    at 450, 72 at 550, and 50 / 1.25 up to the end."""
    trace = Trace(((150.0, False),), ((400.0, 800.0, 1.25),), 600.0, save=10.0, restart=100.0)
    keep = lambda view: (90.0, False, 0)  # noqa: E731
    assert goodput(trace, keep) == pytest.approx((90 + 90 + 82 + 72 + 40) / 600)
    assert goodput(trace, keep) < clairvoyant(trace)


@pytest.mark.parametrize("name", TRACES)
def test_no_policy_beats_the_clairvoyant(name):
    trace, own = TRACES[name], incidents.ratio(TRACES[name], reference.policy)
    assert 0.8 < own < 1
    lucky = [at for at, _ in trace.failures]

    def knows(view):
        coming = next((at for at in lucky if at > view.now + view.save + 1), view.now + view.left)
        return coming - view.now - view.save - 1e-3, *reference.policy(view)[1:]

    assert own < incidents.ratio(trace, knows) < 1


def test_the_board_is_sorted_and_clips(tmp_path):
    for who, value in {"ada": 90, "bob": 1000}.items():
        board.save(dict.fromkeys(board.TRACKS, value), tmp_path / who / "scores.json")
    (tmp_path / "eve").mkdir()
    (tmp_path / "eve" / "scores.json").write_text(json.dumps({"plan": 40}))
    assert [(row["who"], row["mean"]) for row in board.merged(tmp_path)] == [
        ("bob", 100.0), ("ada", 90.0), ("eve", 10.0),
    ]  # fmt: skip
