"""`python -m minitrain plan`: the best plan of a run; `plan front | own | predict | validate |
swing`."""

from __future__ import annotations

import typer

from minitrain.apps.options import add, group, help_of, typed
from minitrain.apps.plan.best import PlanOptions, answer, print_answer
from minitrain.apps.plan.front import FrontOptions, front
from minitrain.apps.plan.own import OwnOptions, own
from minitrain.apps.plan.reports import predict, swing, validate

plan = group("plan", "")


def best_plan(context: typer.Context, **fields: object) -> None:
    """Find the best ways to cut a training run over a cluster, their costs, and why others lose.

    minitrain plan --model llama2-70b --gpus 512
    minitrain plan front --model llama3-8b --gpus 16,64 --deadline 30
    """
    if context.invoked_subcommand is None:
        options = PlanOptions(**fields)
        print_answer(options, answer(options))


plan.callback(invoke_without_command=True, **help_of(best_plan))(typed(best_plan, PlanOptions))
add(plan, front, FrontOptions)
add(plan, own, OwnOptions)
for command in (predict, validate, swing):
    add(plan, command)
