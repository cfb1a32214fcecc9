"""Sends a notebook's function to the sandbox as it stands in the kernel, with what it uses."""

from __future__ import annotations

import inspect
import io
import linecache
import pickle
import sys
from typing import Any

from minitrain.lab.attempt import by_value
from minitrain.lab.checks import CheckFailed, Exercise
from minitrain.lab.course import LabChecks, reference
from minitrain.lab.substitutes import pickled_reference
from minitrain.parallel.payload import Pickler


def live_solution(
    submitted: Any, item: type[Exercise], lab: LabChecks
) -> tuple[dict[str, Any], dict[str, str]]:
    """What `loader.load` takes, and the words for its files; CheckFailed where it cannot be sent.

    Where it uses another exercise's reference (as `lab.grade` returned it) that one travels too.
    """
    others = {e for e in lab.items if issubclass(e, Exercise) and e is not item}
    pickler = _Pickler(submitted, item, {id(reference(e)): e for e in others})
    data = pickler.send()
    used = {e.name: pickled_reference(e) for e in others if e.name in pickler.used}
    sources = _sources(submitted)
    solution = {"live": data, "sources": sources, "substitutes": used}
    return solution, {file: _cell(file) for file in sources if _cell(file) != file}


class _Pickler(Pickler):
    """Sends the references of other exercises by name, and refuses the one that is graded."""

    def __init__(
        self, submitted: Any, item: type[Exercise], others: dict[int, type[Exercise]]
    ) -> None:
        self.buffer = io.BytesIO()
        super().__init__(self.buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.submitted, self.own, self.others = submitted, reference(item), others
        self.used: set[str] = set()

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
                self.dump(self.submitted)
        except CheckFailed:
            raise
        except Exception as error:
            raise CheckFailed(
                f"it cannot be sent to the grader ({error}): make what it uses inside the "
                "function, or give it as an argument"
            ) from error
        return self.buffer.getvalue()


def _sources(submitted: Any) -> dict[str, str]:
    """The text of the cell that defines it, so that a message can show the line."""
    try:
        file = inspect.getsourcefile(submitted) or ""
    except (TypeError, OSError):
        return {}
    return {file: "".join(linecache.getlines(file))} if file else {}


def _cell(file: str) -> str:
    """`cell In[3]` for a cell's file, where a notebook's shell is here to know."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    named = shell.compile.format_code_name(file) if shell else None
    return f"cell {named[1]}" if named else file
