"""The pickles that go into the sandbox: a notebook's function, and the probe that calls it.

Both are sent by value, with the code they use from the same module or folder: neither `tests/` nor
the kernel is visible in the sandbox. File names become the learner's own, or, for a check's code,
anonymous.
"""

from __future__ import annotations

import io
import linecache
import os
import pickle
import sys
import sysconfig
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from types import CodeType
from typing import Any

from minitrain.lab.failures import CheckFailed
from minitrain.lab.grading.checks import Exercise
from minitrain.lab.grading.course import reference
from minitrain.lab.sandbox.loader import SHELL
from minitrain.ranks.payload import Pickler, modules_by_value
from minitrain.ranks.source import CHECKER, cell_name, is_own

OURS = ("minitrain", "__main__", "__mp_main__")
LIBRARIES = tuple(sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib"))


class RenamingPickler(Pickler):
    """Renames the source file of code pickled by value to `rename(file)`."""

    def __init__(self, rename: Callable[[str], str]) -> None:
        self.buffer, self.rename = io.BytesIO(), rename
        super().__init__(self.buffer, protocol=pickle.HIGHEST_PROTOCOL)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, CodeType):
            code = value.replace(co_filename=self.rename(value.co_filename))
            return self.dispatch_table[CodeType](code)
        return super().reducer_override(value)

    def dumps(self, value: Any) -> bytes:
        self.dump(value)
        return self.buffer.getvalue()


class SubmissionPickler(RenamingPickler):
    """Sends the references of other exercises by name, and refuses that of the graded one."""

    def __init__(self, item: type[Exercise], others: Iterable[type[Exercise]]) -> None:
        super().__init__(self.cell_or_file)
        self.name, self.own = item.name, reference(item)
        self.others = {id(reference(other)): other.name for other in others}
        self.used: set[str] = set()
        self.sources: dict[str, str] = {}  # the source of every file of its code

    def persistent_id(self, value: Any) -> str | None:
        if value is self.own:
            raise CheckFailed(
                "this uses the course's own version: run the cell of yours, then this one again"
            )
        if getattr(value, "__name__", "") == SHELL and callable(value):
            return SHELL
        name = self.others.get(id(value))
        if name is not None:
            self.used.add(name)
        return name

    def cell_or_file(self, file: str) -> str:
        """`cell In[3]`, or a file on the disk, or the exercise's own name for its cell."""
        if not is_own(file):
            return file
        words = cell_name(file) or (file if Path(file).exists() else f"cell of {self.name}")
        self.sources[words] = "".join(linecache.getlines(file))
        return words

    def pickled(self, submitted: Any) -> bytes:
        try:
            with by_value(submitted):
                return self.dumps(submitted)
        except CheckFailed:
            raise
        except Exception as error:
            raise CheckFailed(
                f"it cannot be sent to the grader ({error}): make what it uses inside the "
                "function, or give it as an argument"
            ) from error


def pickled_probe(probe: Callable[..., Any], args: tuple) -> bytes:
    """Pickles a probe without the checker's file names: learners cannot fix those files, so no
    message shows them."""
    with by_value(probe):
        return RenamingPickler(lambda file: CHECKER if is_own(file) else file).dumps((probe, args))


def by_value(function: Any) -> AbstractContextManager[None]:
    """Pickles probes and their helpers by value, since the sandbox hides `tests/`."""
    modules = [module for module in list(sys.modules.values()) if _is_beside(module, function)]
    return modules_by_value(modules)


def _is_beside(module: Any, function: Any) -> bool:
    """True for the function's own module and its folder's, not for libraries or this package."""
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    home = getattr(sys.modules.get(function.__module__ or ""), "__file__", None)
    if not isinstance(file, str) or not isinstance(home, str):
        return False
    if name.partition(".")[0] in OURS or file.startswith(LIBRARIES):
        return False
    return os.path.dirname(file) == os.path.dirname(home)
