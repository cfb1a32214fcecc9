"""Tells the learner's source lines from the runtime's, and names them: "cell In[3], line 4"."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
BESIDE = tuple(  # the rest of the course's own code, imported as `minitrain.lab` and `.bench`
    str(Path(PACKAGE).parent / place) + os.sep
    for place in ("labs/kit", "tests/grader", "tests/bench")
)
COURSE_CODE = (PACKAGE, *BESIDE)
STANDARD_LIBRARY = str(Path(os.__file__).parent) + os.sep
CHECKER = "<the checker>"  # the file name of all of a lab's checks during grading
RUNTIME = (  # never the learner's mistake
    f"{PACKAGE}ranks{os.sep}",
    *BESIDE[:2],
    f"{STANDARD_LIBRARY}multiprocessing{os.sep}",
    "<",
)


@lru_cache(maxsize=4096)
def is_own(file: str) -> bool:
    """True if the user wrote this file: not a library's, not the course's."""
    if file.startswith((*COURSE_CODE, STANDARD_LIBRARY, "<frozen", "<string>", CHECKER)):
        return False
    return "site-packages" not in file and "dist-packages" not in file


def is_runtime(file: str) -> bool:
    """True if the file starts ranks or grades them, rather than running on them."""
    return file.startswith(RUNTIME) and not is_own(file)


def learner_line(frame: FrameType | None) -> str:
    """ "file:line" of the innermost frame of the learner's; if there is none, of the innermost
    outside the runtime."""
    for is_meant in (is_own, lambda file: not is_runtime(file)):
        for outer in _outward(frame):
            if is_meant(outer.f_code.co_filename):
                return f"{outer.f_code.co_filename}:{outer.f_lineno}"
    return ""


def calling_line() -> str:
    """The learner's line that the calling thread is running."""
    return learner_line(sys._getframe(1))


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def place(file: str, line: int) -> str:
    """A readable place: "cell In[3], line 4" in a notebook, else "train.py, line 4"."""
    return f"{cell_name(file) or Path(file).name}, line {line}"


def place_of(where: str) -> str:
    """The same for a "file:line", with the source text if it is known."""
    file, _, line = where.rpartition(":")
    return quoted(file, int(line)) if file else "at an unknown line"


def quoted(file: str, line: int, function: str = "") -> str:
    text = code(file, line)
    return f"{place(file, line)}{function}" + (f": {text}" if text else "")


def cell_name(file: str) -> str | None:
    """ "cell In[3]" for the file name that IPython gave to a cell; None for other files."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        return None
    old_name = re.match(r"<ipython-input-(\d+)-", file)  # IPython 7, as on Colab
    if old_name:
        return f"cell In[{old_name[1]}]"
    named = getattr(shell.compile, "format_code_name", lambda file: None)(file)
    return f"cell {named[1]}" if named else None


def code(file: str, line: int) -> str:
    """The text of that line, without its indentation; "" if it is not found."""
    return linecache.getline(file, line).strip()


def cells() -> dict[str, tuple]:
    """The source of all cells: `linecache` entries for files that are not on disk."""
    return {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and entry[1] is None and is_own(name)
    }
