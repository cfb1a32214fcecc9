"""Checks of the small lab on which the machinery is tested."""

from __future__ import annotations

import torch

from minitrain.lab.grading import expect
from minitrain.lab.grading.checks import Exercise, Experiment, Question, Reveal, check

LAB = "e90_sums"
SIZES = {
    "cpu": {"elements": 8, "repeats": 3},
    "test": {"repeats": 1},
    "gpu": {"elements": 1024},
    "multi": {},
}
REVEALS = {
    "last_sum": Reveal("computed", "N(N+1)/2", formula=lambda count: count * (count + 1) / 2),
    "sent": Reveal("measured", "each rank", formula=lambda ranks: 0.375e6 * ranks),
    "x": Reveal("measured"),
}


def call(f, values):
    """A probe: the submission's result on one tensor."""
    return f(values)


class TestRunningSum(Exercise):
    "Running sum"

    name = "running_sum"
    reference = "torch:cumsum"

    @check(points=4, title="equals the sum so far, float64")
    def test_values(self, submission):
        x = torch.arange(5, dtype=torch.float64)
        want = torch.tensor([0.0, 1.0, 3.0, 6.0, 10.0], dtype=torch.float64)
        hints = [(want.flip(0), "this is summed from the end: begin at element 0")]
        expect.equal(submission.run(call, x), want, hints=hints)

    @check(points=2, title="leaves its argument as it was")
    def test_pure(self, submission):
        def both(f, x):
            f(x)
            return x

        x = torch.ones(3)
        expect.equal(submission.run(both, x), torch.ones(3))


class TestGrowth(Experiment):
    "Growth of the sum"

    name = "growth"
    rests_on = ("running_sum",)

    @check(points=3, title="the sum of n ones is n")
    def test_rows(self, table):
        for row in table:
            expect.equal(row["sum"], row["n"])


class TestLargest(Question):
    "The largest sum"

    name = "largest"
    rests_on = ("growth",)

    @check(points=1, title="is the largest that was recorded")
    def test_value(self, value, records):
        expect.equal(value, max(row["sum"] for row in records["growth"]))
