"""Which lines are the learner's own, and how to name them: "cell In[3], line 4"."""

from __future__ import annotations

import linecache
import os
import re
import sys
from functools import lru_cache
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
STANDARD_LIBRARY = str(Path(os.__file__).parent) + os.sep
CHECKER = "<the checker>"  # the name of all files of a lab's checks where a submission is graded


@lru_cache(maxsize=4096)
def is_own(file: str) -> bool:
    """Whether a person at the keyboard wrote this file: no library's, none of this package."""
    if file.startswith((PACKAGE, STANDARD_LIBRARY, "<frozen")) or file in ("<string>", CHECKER):
        return False
    return "site-packages" not in file and "dist-packages" not in file


def learner_line(frame: FrameType | None) -> str:
    """ "file:line" of the innermost frame that is the learner's, or of `frame` where none is."""
    own = frame
    while own is not None and not is_own(own.f_code.co_filename):
        own = own.f_back
    own = own or frame
    return "" if own is None else f"{own.f_code.co_filename}:{own.f_lineno}"


def place(file: str, line: int) -> str:
    """How a person calls it: "cell In[3], line 4" in a notebook, else "train.py, line 4"."""
    return f"{cell_name(file) or Path(file).name}, line {line}"


def cell_name(file: str) -> str | None:
    """ "cell In[3]" for the file name that IPython gave to a cell; None where it gave none."""
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
    """The text of that line, without its indentation; "" where it cannot be found."""
    return linecache.getline(file, line).strip()


def cells() -> dict[str, tuple]:
    """The source of all cells: what `linecache` holds for files that are on no disk."""
    return {
        name: entry
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and entry[1] is None and is_own(name)
    }
