"""The banks of submissions in this folder, and what the grader must answer to each.

`banks/wrong/e02.diff`: mistakes that lose points, the shortest for each check of lab e02 and for
each message that a check gives. `banks/right/e02.diff`: other correct solutions with full marks,
one for each algorithm. `hostile/e02.diff`: attacks on that lab, and `hostile/any.diff` on the tiny
one; each costs its own points. What a submission does not define comes from the course.

Below the name of an exercise stand its entries, each a head and what is handed in:

    # exercise: all_reduce_gradients

    # name: naive_forgets_to_divide
    # says: this is the sum | divide         one of these texts must be in the messages ...
    # says: rank 1                           ... and one of each further line
    -            group.all_reduce(parameter.grad, op="avg")
    +            group.all_reduce(parameter.grad)

Marked lines edit the course's own solution as a diff does: `-` goes, `+` comes, a blank stays, `@@`
parts the edits of one mistake. The lines that go or stay are whole lines of the exercise's cell in
`solutions/e02_….ipynb`, there exactly once: whoever changes a solution sees which mistakes to
write anew. After `# of: backwards` they edit that entry of `banks/right/e02.diff`. Lines without
marks are a whole program, of what the learner writes: what the notebook defines beside it (e02's
`Bucket` and `Wrapper`) comes from the solution.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path

from minitrain.lab.building.regions import filled, unmarked
from minitrain.lab.grading.collect import lab_names
from minitrain.lab.grading.submission import Submission, read_python
from minitrain.lab.sandbox.loader import Cell
from minitrain.paths import course_root

HEAD = re.compile(r"# (name|exercise|says|of): (.+)")
MARKS = ("-", "+", " ")


@dataclass(frozen=True)
class Edit:
    """Lines of a solution, and those in their place; `where` is the edit's own place."""

    where: str
    old: list[str]
    new: list[str]

    def apply(self, lines: list[str]) -> list[str]:
        """ValueError unless `lines` hold the old ones exactly once."""
        size = len(self.old)
        places = [i for i in range(len(lines)) if lines[i : i + size] == self.old]
        if size == 0 or len(places) != 1:
            raise ValueError(
                f"{self.where}: the solution has the {size} lines that go or stay "
                f"{len(places)} times, not once: copy them from solutions/, with their neighbours"
            )
        return [*lines[: places[0]], *self.new, *lines[places[0] + size :]]


@dataclass(frozen=True)
class Specimen:
    """A submission of a bank: edits of the course's solution, or of the right one that is called
    `of`; without edits, the program `text`."""

    path: Path
    name: str
    exercise: str
    says: list[list[str]]  # alternatives, line by line
    edits: list[Edit]
    text: str
    of: str = ""

    @property
    def number(self) -> str:
        """The lab's: e02 of `wrong/e02.diff` and of `hostile/e02.diff`."""
        return self.path.stem if self.path.suffix == ".diff" else self.path.parent.name

    @property
    def lab(self) -> str:
        """The lab's whole name: e02_data_parallel."""
        (name,) = [name for name in lab_names() if name.partition("_")[0] == self.number]
        return name

    def submission(self) -> Submission:
        """As it is handed in; ValueError where an edit does not fit the solution."""
        if self.edits:
            base = right(self.path)[self.of].submission() if self.of else solution(self.lab)
            return edited(base, self)
        own = read_python(self.path, self.text)
        return replace(own, cells=(*given(self.number), *own.cells))

    def missing(self, text: str) -> list[str]:
        """The lines of `says` of which `text` has no alternative."""
        flat = " ".join(text.split()).lower()
        lacking = [line for line in self.says if not any(w.lower() in flat for w in line)]
        return [" | ".join(line) for line in lacking]


@cache
def given(number: str) -> tuple[Cell, ...]:
    """What the lab's notebook defines for the learner, which no specimen repeats; nothing of a
    lab that is not in the course."""
    labs = [name for name in lab_names() if name.partition("_")[0] == number]
    return tuple(cell for lab in labs for cell in solution(lab).cells if not cell.whole)


@cache
def solution(lab: str) -> Submission:
    """The course's own, as it would be handed in."""
    path = course_root() / "solutions" / f"{lab}.py"
    return read_python(path, unmarked(filled(path.read_text(encoding="utf-8"))))


@cache
def right(wrong: Path) -> dict[str, Specimen]:
    """The right ones of the same lab, by name."""
    return {one.name: one for one in read(wrong.parents[1] / "right" / wrong.name)}


def edited(solution: Submission, mistake: Specimen) -> Submission:
    """The solution with the mistake in the cell of its exercise."""
    cells = list(solution.cells)
    for place, cell in enumerate(solution.cells):
        if cell.whole and replace(solution, cells=(cell,)).defines(mistake.exercise):
            lines = cell.source.split("\n")
            for edit in mistake.edits:
                lines = edit.apply(lines)
            cells[place] = Cell(cell.name, "\n".join(lines), cell.whole)
    if cells == list(solution.cells):
        raise ValueError(
            f"{mistake.path.name}: {mistake.name} changes nothing of `{mistake.exercise}` in "
            f"{solution.path.name}: name one of its exercises and give lines with - and +"
        )
    return replace(solution, cells=tuple(cells))


def bank(folder: Path) -> list[Specimen]:
    """All submissions of a bank, lab by lab."""
    paths = [path for path in folder.rglob("*") if path.suffix in (".diff", ".py")]
    found = [specimen for path in paths for specimen in read(path)]
    return sorted(found, key=lambda specimen: (specimen.number, specimen.name))


def read(path: Path) -> Iterator[Specimen]:
    """The entries of a file: each goes from its name to the next one's; without names, one."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [place for place, line in enumerate(lines) if line.startswith("# name: ")]
    for start, stop in pairwise([*(starts or [0]), len(lines)]):
        code = (i for i in range(start, stop) if lines[i] and not lines[i].startswith("#"))
        body = next(code, stop)
        head = [mark.groups() for mark in map(HEAD.fullmatch, lines[start:body]) if mark]
        above = [
            mark[2] for mark in map(HEAD.fullmatch, lines[:body]) if mark and mark[1] == "exercise"
        ]
        says = [value.split(" | ") for key, value in head if key == "says"]
        is_edit = lines[body : body + 1] != [] and lines[body].startswith(MARKS)
        edits = list(read_edits(lines[body:stop], path.name, body + 1)) if is_edit else []
        text = "" if is_edit else "\n".join(lines[start:stop]) + "\n"
        own = dict(head)
        yield Specimen(
            path,
            own.get("name", path.stem),
            above[-1] if above else "",
            says,
            edits,
            text,
            own.get("of", ""),
        )


def read_edits(lines: Iterable[str], file: str, first: int) -> Iterator[Edit]:
    """Each run of marked lines; `first` is the number of the first line in the file."""
    for is_edit, run in groupby(enumerate(lines, first), lambda pair: pair[1][:1] in MARKS):
        numbers, texts = zip(*run)
        if is_edit:
            old = [text[1:] for text in texts if text[0] != "+"]
            new = [text[1:] for text in texts if text[0] != "-"]
            yield Edit(f"{file}, line {numbers[0]}", old, new)
            continue
        for number, text in zip(numbers, texts):
            if text not in ("", "@@") and not text.startswith("#"):
                raise ValueError(f"{file}, line {number}: mark `{text}` with -, + or a blank")
