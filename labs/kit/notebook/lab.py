"""`lab = Lab("e02_data_parallel")`: a notebook's interface to the course.

    ring = lab.grade(ring)                 card; yours if it passes, else the reference
    lab.predict("bytes", guess)            a guess before the measurement, then …
    lab.reveal("bytes", found, ranks=4)    … guess, formula and measurement side by side
    lab.experiment("scaling", table)       stores measured rows and checks their constraints
    lab.answer("bottleneck", value)        checked against one's own records
    lab.size("hidden")                     from the lab's table SIZES, by the tier of this machine
    lab.score()                            the sum, and what to read next
    lab.reset()                            starts the lab over

Progress is kept on disk (`progress.py`); every call may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from minitrain.errors import InputError, unknown_name
from minitrain.lab.drawing.cards import (
    grade_card,
    guess_card,
    header_card,
    hidden_card,
    revealed_card,
    score_card,
    waiting_card,
)
from minitrain.lab.drawing.display import display, publish
from minitrain.lab.drawing.tables import plain, rows_of
from minitrain.lab.grading.checks import Graded
from minitrain.lab.grading.course import load_lab, reference
from minitrain.lab.grading.grade import grade_item, warm
from minitrain.lab.notebook import slips
from minitrain.lab.notebook.machine import Machine
from minitrain.lab.notebook.progress import LabProgress, Progress
from minitrain.lab.notebook.written import not_yet
from minitrain.ranks.launch import prepare
from minitrain.words import plural

Submitted = TypeVar("Submitted", bound=Callable[..., Any])

# Modules used by most labs' ranks: the server imports them once, instead of every rank.
RANKS_USE = ("minitrain.training.loop", "minitrain.parallel.ddp")

# The columns of a lab's SIZES that a tier reads, the later over the earlier. `test` has the same
# cells and the same checks in seconds: the course's own tests ask for it, no machine has it.
COLUMNS = {
    "test": ("cpu", "test"),
    "cpu": ("cpu",),
    "gpu": ("cpu", "gpu"),
    "multi": ("cpu", "gpu", "multi"),
}


class Lab:
    """One lab of the course, as used in its notebook; printing it shows the learner's progress.

    `tier`: cpu, gpu (one), multi (two or more) or test; by default that of the machine.
    """

    def __init__(
        self,
        name: str,
        root: Path | None = None,
        progress_folder: Path | None = None,
        tier: str | None = None,
    ) -> None:
        self.checks = load_lab(name, root)
        self._sandbox = warm(self.checks)
        self.name = name
        self.machine = Machine()
        self.tier = tier or self.machine.tier
        if self.tier not in COLUMNS:
            raise unknown_name("tier", self.tier, COLUMNS)
        self._progress = Progress(name, progress_folder)
        slips.install(name)
        prepare(*RANKS_USE)  # so that the first launch is as fast as later ones
        if self.progress == LabProgress(name):
            print(self)
        else:
            display(header_card(repr(self), self._progress.path))

    def __repr__(self) -> str:
        done = sum(item.name in self._earned for item in self.checks.items)
        return f"{self.machine} · {done} of {len(self.checks.items)} done"

    @property
    def progress(self) -> LabProgress:
        """The learner's progress as it is on disk now."""
        return self._progress.load()

    @property
    def _earned(self) -> set[str]:
        """The items with full points."""
        return {name for name, (best, of) in self.progress.points.items() if best >= of}

    @property
    def records(self) -> dict[str, list[dict[str, Any]]]:
        """The tables recorded so far, by name."""
        return self.progress.records

    @property
    def device(self) -> Any:
        """The torch.device that the lab runs on."""
        return self.machine.device

    @property
    def device_name(self) -> str:
        """The device that the numbers were measured on, for the titles of figures."""
        return self.machine.name

    def size(self, name: str) -> Any:
        """A size from the lab's SIZES for this tier; missing values come from the tier below."""
        found: dict[str, Any] = {}
        for column in COLUMNS[self.tier]:
            found |= self.checks.sizes.get(column, {})
        if name not in found:
            raise unknown_name(f"size of {self.name}", name, found)
        return found[name]

    def grade(self, submitted: Submitted) -> Submitted:
        """Shows how each check went; returns `submitted` if all pass, else the reference."""
        item = self._given_out(submitted)
        if item is not None:
            text = f"This is the reference: run the cell of your `{item.name}`, then this one."
            publish(waiting_card(item.title, text, item.max_points))
            return submitted
        item = self.checks.find("exercise", _name_of(submitted))
        ours = reference(item)
        if reason := not_yet(submitted):
            publish(waiting_card(item.title, reason, item.max_points))
            return ours
        passed = self._graded(item, submitted, "Until every check passes, the reference stands in.")
        return submitted if passed else ours

    def predict(self, name: str, guess: float | None, unit: str = "") -> None:
        """Stores a guess, before `reveal` shows the measured number.

        unit: "B", "s", "%", any word, or "share", from 0 to 1, which is shown in percent.
        """
        if guess is None:
            text = "Put a number in place of None: until then the answer stays hidden."
            display(waiting_card("Your guess", text))
            return
        value = plain(guess, f"the guess '{name}'")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"the guess '{name}' is {value!r}; it needs one number, such as 12e6")
        self._progress.remember("predictions", name, {"guess": value, "unit": unit})
        data = {"kind": "predict", "name": name, "value": value}
        display(guess_card(value, unit, data=data))

    def reveal(self, name: str, found: float, **given: Any) -> None:
        """Shows the guess beside the measurement, and the theoretical value for `given`
        (`Reveal`)."""
        if name not in self.checks.reveals:
            raise unknown_name(f"reveal of {self.name}", name, self.checks.reveals)
        kept = self.progress.predictions.get(name)
        if kept is None:
            display(hidden_card())
            return
        told, shown = self.checks.reveals[name], plain(found, f"what was found for '{name}'")
        theory = plain(told.formula(**given), "the formula") if told.formula else None
        numbers = {"your guess": kept["guess"], "formula": theory, told.source: shown}
        display(revealed_card(kept["unit"], numbers, told.note))

    def experiment(self, name: str, table: Any) -> None:
        """Stores a measured table (list of dicts, dict of lists, DataFrame) and checks it."""
        item = self.checks.find("experiment", name)
        rows = [] if table is None else rows_of(table, name)
        if not rows:
            text = "Nothing recorded yet: the table has no rows."
            publish(waiting_card(item.title, text, item.max_points))
            return
        self._progress.remember("records", name, rows)
        data = {"kind": "experiment", "name": name, "value": rows}
        self._graded(item, rows, f"{plural(len(rows), 'row')} kept.", data)

    def answer(self, name: str, value: Any) -> None:
        """Checks an answer against the learner's own records."""
        item = self.checks.find("question", name)
        if value is None or value is Ellipsis:
            publish(waiting_card(item.title, "No answer yet.", item.max_points))
            return
        kept = plain(value, f"the answer '{name}'")
        self._progress.remember("answers", name, kept)
        self._graded(item, kept, "", {"kind": "answer", "name": name, "value": kept})

    def score(self, read: str = "") -> None:
        """The sum of the best results, what is missing, and what to read next."""
        display(score_card(self.name, self.checks.items, self.progress.points, read))

    def reset(self) -> None:
        """Starts over: no points, guesses, tables or answers. The old ones stay in a file."""
        kept = self._progress.reset()
        print(f"{self}\nwhat you had is in {kept}" if kept else self)

    def _given_out(self, submitted: Any) -> type[Graded] | None:
        """The exercise whose reference this is: a grade cell that is run twice passes it back."""
        exercises = (item for item in self.checks.items if item.kind == "exercise")
        return next((item for item in exercises if reference(item) is submitted), None)

    def _graded(
        self, item: type[Graded], payload: Any, note: str, data: dict | None = None
    ) -> bool:
        """Grades, keeps the best score, shows the card; True if every check passed."""
        results = grade_item(item, payload, self.records, self._sandbox, self._earned)
        points = sum(result.points for result in results)
        passed = all(result.status == "passed" for result in results)
        before = self.progress.points.get(item.name, [0.0])[0]
        best = self._progress.score(item.name, points, item.max_points)
        if before > points:
            note = f"{note} Your best so far, {plural(best, 'point')}, is kept.".strip()
        elif passed and item.kind == "exercise":
            note = "From here on the lab uses yours."
        publish(grade_card(item.title, results, note, data))
        return passed


def _name_of(submitted: Any) -> str:
    name = getattr(submitted, "__name__", None)
    if name is None:
        raise InputError(
            f"lab.grade was given a {type(submitted).__name__}; it takes the function or class "
            "itself, not called: lab.grade(ring_all_reduce)"
        )
    return name
