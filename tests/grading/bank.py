"""The banks of submissions in this folder, and what the grader must answer to each.

`wrong/`: plausible mistakes, each loses points and is told its words. `right/`: other correct
solutions, full marks on every exercise that they define. `hostile/`: attacks, each costs its own
points. `blind/`: wrong and right ones by readers who had the notebooks alone, and saw no check; as
they were handed in. What a submission does not define comes from the course.

A mistake of a few lines is an edit of the course's own solution, in `wrong/e02.diff` for lab e02:

    # name: naive_forgets_to_divide
    # exercise: all_reduce_gradients
    # says: this is the sum | divide         one of these texts must be in the messages ...
    # says: rank 1                           ... and one of each further line
    -            group.all_reduce(parameter.grad, op="avg")
    +            group.all_reduce(parameter.grad)

The marks are a diff's: `-` goes, `+` comes, a blank stays, `@@` parts the edits of one mistake.
The lines that go or stay are whole lines of the exercise's cell in `solutions/e02_….ipynb`, there
exactly once: whoever changes a solution is told which mistakes to write anew. Mistakes in another's
right answers, `right/e02/sixth.py`, stand in `wrong/e02/sixth.diff` in the same way.

Any other program is a file of its own, `wrong/e02/naive_one_large_message.py`, whose first
comments say the exercise and the words in the same way. It holds what the learner writes: what the
notebook defines beside it (e02's `Bucket` and `Wrapper`) comes from the solution.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, pairwise, takewhile
from pathlib import Path

from minitrain.lab.building.regions import filled, unmarked
from minitrain.lab.grading.collect import lab_names
from minitrain.lab.grading.submission import Submission, read_python, read_submission
from minitrain.lab.sandbox.loader import Cell
from minitrain.paths import course_root

HEAD = re.compile(r"# (exercise|says): (.+)")
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
    """A submission of a bank: a file, or edits of the course's solution."""

    path: Path
    name: str
    exercise: str
    says: list[list[str]]  # alternatives, line by line
    edits: list[Edit]

    @property
    def number(self) -> str:
        """The lab's: e02 of `wrong/e02.diff` and of what lies in `wrong/e02`."""
        return self.path.parent.name if self.lies_in_lab else self.path.stem

    @property
    def lies_in_lab(self) -> bool:
        """Whether it is no edit of the course's own solution."""
        return self.path.parent.name not in ("wrong", "right")

    @property
    def lab(self) -> str:
        """The lab's whole name: e02_data_parallel."""
        (name,) = [name for name in lab_names() if name.partition("_")[0] == self.number]
        return name

    def submission(self) -> Submission:
        """As it is handed in; ValueError where an edit does not fit the solution."""
        if not self.lies_in_lab:
            return edited(solution(self.lab), self)
        path = self.path
        if self.edits:
            path = path.parents[2] / "right" / self.number / f"{path.stem}.py"
        own = read_submission(path)
        whole = replace(own, cells=(*given(self.number), *own.cells))
        return edited(whole, self) if self.edits else whole

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
    found = [read_file(path) for path in folder.rglob("*.py")]
    found += [mistake for path in folder.rglob("*.diff") for mistake in read_mistakes(path)]
    return sorted(found, key=lambda specimen: (specimen.number, specimen.name))


def read_file(path: Path) -> Specimen:
    """The head is the comments before the first line of code."""
    lines = path.read_text(encoding="utf-8").splitlines()
    head = list(takewhile(lambda line: line == "" or line.startswith("#"), lines))
    return Specimen(path, path.stem, *read_head(head), edits=[])


def read_mistakes(path: Path) -> Iterator[Specimen]:
    """Those of a `.diff`: each goes from its name to the next one's."""
    lines = path.read_text(encoding="utf-8").splitlines()
    names = [place for place, line in enumerate(lines) if line.startswith("# name: ")]
    for start, stop in pairwise([*names, len(lines)]):
        own = lines[start:stop]
        edits = list(read_edits(own, path.name, start + 1))
        yield Specimen(path, own[0].removeprefix("# name: "), *read_head(own), edits)


def read_head(lines: list[str]) -> tuple[str, list[list[str]]]:
    """The exercise, "" where none is named, and the words."""
    found = [mark.groups() for mark in map(HEAD.fullmatch, lines) if mark]
    exercise = next((value for key, value in found if key == "exercise"), "")
    return exercise, [value.split(" | ") for key, value in found if key == "says"]


def read_edits(lines: list[str], file: str, first: int) -> Iterator[Edit]:
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
