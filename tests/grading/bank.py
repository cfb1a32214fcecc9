"""The banks of submissions in `tests/grading`, and what the grader must answer to each.

A file of a bank is a submission whose head says what it is about, in comments:

    # exercise: ring_all_reduce              the exercise that it attempts (wrong, hostile)
    # says: this is the average | divide     one of these texts must be in the messages ...
    # says: rank 1                           ... and one of each further line

`wrong/eXX/`: plausible mistakes, each loses points and is told its words. `right/eXX/`: other
correct solutions, full marks on every exercise that the file defines. `hostile/`: attacks, each
costs its own points. A file needs to define only its exercise: earlier ones come from the course.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEAD = re.compile(r"^# (exercise|says): (.+)$")


@dataclass(frozen=True)
class Specimen:
    """A file of a bank with what its head says."""

    path: Path
    exercise: str
    says: tuple[tuple[str, ...], ...]

    def missing(self, text: str) -> list[str]:
        """The lines of `says` of which `text` has no alternative."""
        flat = " ".join(text.split()).lower()
        lacking = [line for line in self.says if not any(w.lower() in flat for w in line)]
        return [" | ".join(line) for line in lacking]


def read(path: Path) -> Specimen:
    """The head is the comments before the first line of code."""
    found: list[tuple[str, str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        mark = HEAD.match(line)
        if mark:
            found.append((mark[1], mark[2]))
        elif line and not line.startswith("#"):
            break
    exercise = next((value for key, value in found if key == "exercise"), "")
    says = tuple(tuple(value.split(" | ")) for key, value in found if key == "says")
    return Specimen(path, exercise, says)


def bank(folder: Path) -> list[Specimen]:
    """All files of a bank, also in its folders."""
    return [read(path) for path in sorted(folder.rglob("*.py"))]


def lab_of(path: Path, names: list[str]) -> str:
    """The lab of `wrong/e02b/name.py` is the one whose name begins with e02b_."""
    (lab,) = [name for name in names if name.partition("_")[0] == path.parent.name]
    return lab
