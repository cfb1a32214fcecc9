"""`python -m minitrain build`: masters -> executed solutions and learners' notebooks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minitrain.apps.kinds import Argument, Kind

if TYPE_CHECKING:
    from minitrain.lab.building.masters import Target


def read_lab(text: str) -> str:
    """The name of a lab that has a master, by itself or by its file."""
    from minitrain.lab.building.masters import targets

    return targets([text])[0].name


LAB = Kind("LAB", "the name of a lab, e02_data_parallel for one", read_lab)


def build(
    names: Annotated[list[str] | None, Argument(LAB, "labs; without any, all", many=True)] = None,
    check: Annotated[bool, typer.Option("--check", help="only tell what has drifted")] = False,
    force: Annotated[bool, typer.Option("--force", help="execute even what is current")] = False,
    unfilled: Annotated[
        bool,
        typer.Option("--unfilled", help="also run the learner's notebook, with nothing filled in"),
    ] = False,
) -> None:
    """Make executed solutions and learners' notebooks from solutions/*.py."""
    from minitrain.lab.building.masters import targets

    chosen = targets(names or None)
    if check:
        sys.exit(_report_drift(chosen))
    for target in chosen:
        _build(target, force, unfilled)


def _report_drift(chosen: list[Target]) -> int:
    from minitrain.lab.building.masters import drift, for_learners, read_master
    from minitrain.lab.building.rules import problems

    found = 0
    for target in chosen:
        differences = [f"{line}: run 'make build'" for line in drift(target)]
        lines = differences + [
            f"{target.name}: {line}" for line in problems(for_learners(read_master(target)))
        ]
        found += len(lines)
        print("\n".join(lines) if lines else f"{target.name}: labs and solutions are current")
    return min(found, 1)


def _build(target: Target, force: bool, unfilled: bool) -> None:
    from minitrain.lab.building.execute import execute
    from minitrain.lab.building.masters import (
        as_solution,
        for_learners,
        read_master,
        with_outputs,
        write,
        write_picture,
    )
    from minitrain.lab.building.rules import problems
    from minitrain.lab.building.schematics import draw_again

    notebook = read_master(target)
    lab, solution = for_learners(notebook), as_solution(notebook)
    for line in problems(lab):
        print(f"{target.name}: {line}", file=sys.stderr)
    write(lab, target.lab)
    ran = None if force else with_outputs(target, solution)
    run = draw_again if ran else execute
    executed = run(ran or solution, target.name, target.lab.parent)
    write(executed, target.solution)
    write_picture(executed, target)
    kept = "its code is that of the last execution, its schematics are today's"
    done = kept if ran else "executed"
    written = f"{_short(target.solution, target)}, {_short(target.lab, target)}"
    print(f"{target.name}: {done}; wrote {written}")
    if unfilled:
        execute(lab, f"{target.name}, unfilled", target.lab.parent)
        print(f"{target.name}: the unfilled lab runs from top to bottom")


def _short(path: Path, target: Target) -> str:
    return path.relative_to(target.root).as_posix()
