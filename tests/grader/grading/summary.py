"""A class at a glance: each student's points by lab, the mean of each lab and exercise, and where
most points are lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean

from rich.console import Console, Group, RenderableType
from rich.table import Table

from minitrain.lab.grading.rows import Grade, points_of
from minitrain.words import plural, points_text

MOST_LOST = 3  # items listed per lab


def print_summary(rows: Sequence[Grade]) -> None:
    """Prints to the terminal, at its full width; nothing if nothing was graded."""
    Console(soft_wrap=False).print(summary(rows))


def summary(rows: Sequence[Grade]) -> RenderableType:
    """One table per lab, in lab order, over all rows with points."""
    labs: dict[str, list[dict[str, list[float]]]] = defaultdict(list)
    for row in rows:
        if row.details:
            labs[row.lab].append(points_of(row))
    students = [_of_students(rows, sorted(labs))] if labs else []
    return Group(*(_of_lab(lab, labs[lab]) for lab in sorted(labs)), *students)


def _of_students(rows: Sequence[Grade], labs: Sequence[str]) -> Table:
    """Students by labs, and their totals; of several files for one lab the best counts."""
    best: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row.student:
            before = best[row.student].get(row.lab, 0.0)
            best[row.student][row.lab] = max(before, float(row.score or 0))
    table = Table(title="points by student", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("student")
    for name in (*(lab.partition("_")[0] for lab in labs), "total"):
        table.add_column(name, justify="right")
    for student, points in sorted(best.items()):
        cells = [points_text(points[lab]) if lab in points else "" for lab in labs]
        table.add_row(student, *cells, points_text(sum(points.values())))
    return table


def _of_lab(lab: str, graded: Sequence[dict[str, list[float]]]) -> Table:
    most = sum(of for _, of in graded[0].values())
    score = mean(sum(got for got, _ in points.values()) for points in graded)
    title = f"{lab}: {plural(len(graded), 'file')}, mean {score:.1f} of {points_text(most)}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("exercise")
    for name in ("mean", "of", "all points", "none"):
        table.add_column(name, justify="right")
    table.add_column("")
    lost = {name: mean(_lost(points[name]) for points in graded) for name in graded[0]}
    worst = sorted(lost, key=lambda name: -lost[name])[:MOST_LOST]
    for name, (_, of) in graded[0].items():
        got = [points[name][0] for points in graded]
        counts = (sum(x == of for x in got), sum(x == 0 for x in got))
        note = f"{lost[name]:.1f} lost" if name in worst and lost[name] else ""
        table.add_row(name, f"{mean(got):.1f}", points_text(of), *map(str, counts), note)
    return table


def _lost(points: list[float]) -> float:
    got, of = points
    return of - got
