"""The learner's progress in the course: every lab with its points, and the next step.

Titles and minutes are read from the labs themselves, points from the checks and the progress on
disk; a lab that is added to `labs/` appears here without a change.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from minitrain.lab.drawing.card import Card, Line
from minitrain.lab.drawing.course_map import Standing, course_map
from minitrain.lab.drawing.display import Rich, display
from minitrain.lab.grading.collect import lab_names
from minitrain.lab.grading.course import load_lab
from minitrain.lab.notebook.progress import Progress
from minitrain.paths import course_root
from minitrain.words import points_text, score_text

MINUTES = re.compile(r"(\d+)[\s-]*min", re.IGNORECASE)
BEFORE = re.compile(r"before:(.*?)(?:next:|\[map|\n\n|\Z)", re.DOTALL)
LINKED = re.compile(r"\]\((\w+)\.ipynb\)")


def standings(root: Path | None = None, progress_folder: Path | None = None) -> list[Standing]:
    """All labs that have both a notebook and checks, in the course's order."""
    root = root or course_root()
    notebooks = {path.stem: path for path in (root / "labs").glob("*.ipynb")}
    return [
        _standing(notebooks[name], root, progress_folder)
        for name in lab_names(root)
        if name in notebooks
    ]


def _standing(path: Path, root: Path, progress_folder: Path | None) -> Standing:
    cell = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    first = "".join(cell["source"])  # a string, or a list of lines
    title = re.search(r"^#\s+(.+)$", first, re.MULTILINE)
    minutes, before = MINUTES.search(first), BEFORE.search(first)
    items = load_lab(path.stem, root).items
    points = Progress(path.stem, progress_folder).load().points
    best = {item.name: points.get(item.name, [0.0])[0] for item in items}
    return Standing(
        name=path.stem,
        title=title[1].strip() if title else path.stem,
        minutes=f"{minutes[1]} min" if minutes else "",
        before=tuple(LINKED.findall(before[1])) if before else (),
        earned=sum(best.values()),
        total=sum(item.max_points for item in items),
        open_items=tuple(item.title for item in items if best[item.name] < item.max_points),
    )


def overview() -> None:
    """Displays the map of the labs, the points so far, and the next step."""
    labs = standings()
    display(course_map(labs))
    display(overview_card(labs))


def overview_card(labs: list[Standing]) -> Rich:
    """The same as an object."""
    earned, total = sum(lab.earned for lab in labs), sum(lab.total for lab in labs)
    lines = [
        Line(
            lab.link,
            f"{lab.minutes} · {points_text(lab.earned)}/{points_text(lab.total)}".strip(" ·"),
            *lab.state,
            share=lab.earned / lab.total,
        )
        for lab in labs
    ]
    tone = "good" if earned >= total else "info"
    score = score_text(earned, total)
    return Card("Your course", score, tone, lines=lines, note=_next(labs)).rich()


def _next(labs: list[Standing]) -> str:
    """The first unfinished lab, and its first open item."""
    for lab in labs:
        if lab.open_items:
            rest = f"{len(lab.open_items)} to go, first: {lab.open_items[0]}"
            return f"Next: {lab.link}, {rest}"
    return "Everything is done: read the package from top to bottom, you have written most of it."
