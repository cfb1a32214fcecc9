"""Sends a notebook's function to the sandbox as it stands in the kernel, with what it uses."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading.attempt import RenamingPickler, by_value
from minitrain.lab.grading.checks import Exercise
from minitrain.lab.grading.course import LabChecks, pickled_reference, reference
from minitrain.ranks.source import cell_name, is_own


def live_solution(submitted: Any, item: type[Exercise], lab: LabChecks) -> dict[str, Any]:
    """What `loader.load` takes; CheckFailed where it cannot be sent.

    Where it uses another exercise's reference (as `lab.grade` returned it) that one travels too.
    """
    others = {e for e in lab.items if issubclass(e, Exercise) and e is not item}
    pickler = _Pickler(submitted, item, {id(reference(e)): e for e in others})
    data = pickler.send()
    used = {e.name: pickled_reference(e) for e in others if e.name in pickler.used}
    return {"live": data, "sources": pickler.sources, "substitutes": used}


class _Pickler(RenamingPickler):
    """Sends the references of other exercises by name, and refuses the one that is graded."""

    def __init__(
        self, submitted: Any, item: type[Exercise], others: dict[int, type[Exercise]]
    ) -> None:
        super().__init__(self.named)
        self.submitted, self.own, self.others = submitted, reference(item), others
        self.name = item.name
        self.used: set[str] = set()
        self.sources: dict[str, str] = {}  # the text of every file that its code comes from

    def persistent_id(self, value: Any) -> str | None:
        if value is self.own:
            raise CheckFailed(
                "this uses the course's own version: run the cell of yours, then this one again"
            )
        other = self.others.get(id(value))
        if other is None:
            return None
        self.used.add(other.name)
        return other.name

    def send(self) -> bytes:
        try:
            with by_value(self.submitted):
                return self.dumps(self.submitted)
        except CheckFailed:
            raise
        except Exception as error:
            raise CheckFailed(
                f"it cannot be sent to the grader ({error}): make what it uses inside the "
                "function, or give it as an argument"
            ) from error

    def named(self, file: str) -> str:
        """`cell In[3]`, or a file on the disk, or the exercise's own name for its cell."""
        if not is_own(file):
            return file
        words = cell_name(file) or (file if Path(file).exists() else f"cell of {self.name}")
        self.sources[words] = "".join(linecache.getlines(file))
        return words
