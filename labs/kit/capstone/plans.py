"""Track 2: a plan for a model on a cluster, timed by the planner.

score of a case = t_best / t_plan, 0 if the plan is illegal or does not fit; geometric mean of all.
t_best is the least over every legal plan that fits: `exhaustive` tries them all, in seconds;
`best` keeps what it found, so that a score takes one estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from minitrain.planning.hardware import Chip
from minitrain.planning.run import Model, Plan, Run, make_run
from minitrain.planning.search import USABLE, legal_runs
from minitrain.planning.step.memory import peak_memory
from minitrain.planning.step.network import Fabric, fabric_of
from minitrain.planning.step.step import estimate

TIMINGS = 12  # plans that a submission may time in one case


@dataclass
class Case:
    """A model, a cluster and a batch of sequences; `timed` counts the plans that were timed."""

    name: str
    model: Model
    chip: Chip
    gpus: int
    seq: int
    batch: int
    best: Plan
    fabric: Fabric = field(init=False, compare=False)  # made here: no sandbox has its tables
    timed: int = field(default=0, compare=False)
    known: dict[Plan, bool] = field(default_factory=dict, init=False, compare=False)  # does it fit?

    def __post_init__(self) -> None:
        self.fabric = fabric_of(self.chip, self.chip.per_node)

    @cached_property
    def plans(self) -> list[Plan]:
        """Every legal plan: pipelines of 1, 2, 4 or 8 stages."""
        runs = legal_runs(
            self.model, self.chip, self.gpus, self.seq, self.batch, "bf16", self.chip.per_node
        )
        return [run.plan for run in runs if run.plan.pp in (1, 2, 4, 8)]

    def run(self, plan: Plan) -> Run:
        return make_run(self.chip, self.model, plan, self.seq, self.batch)

    def fits(self, plan: Plan) -> bool:
        if plan not in self.known:
            self.known[plan] = peak_memory(self.run(plan)).total <= USABLE * self.chip.memory
        return self.known[plan]

    def seconds(self, plan: Plan) -> float:
        """A step by the planner's clock; for the first `TIMINGS` calls."""
        self.timed += 1
        if self.timed > TIMINGS:
            raise RuntimeError(f"{self.name}: {TIMINGS} plans are timed, and no more may be")
        return estimate(self.run(plan), self.fabric).seconds


def seconds_of(case: Case, plan: Plan) -> float:
    return estimate(case.run(plan), case.fabric).seconds


def ratio(case: Case, plan: Plan) -> float:
    """t_best / t_plan from 0 to 1."""
    if plan not in case.plans or not case.fits(plan):
        return 0.0
    best, own = (seconds_of(case, one) for one in (case.best, plan))
    return min(1.0, best / own)


def exhaustive(case: Case) -> Plan:
    """The fastest of all legal plans that fit."""
    fitting = [plan for plan in case.plans if case.fits(plan)]
    return min(fitting, key=lambda plan: seconds_of(case, plan))
