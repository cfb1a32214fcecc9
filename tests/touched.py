"""The labs that changed since a commit: `make test-touched` grades their whole banks.

    python tests/touched.py [COMMIT]    prints e02 e12 …; without a commit, since a day before HEAD

A lab is its master in solutions/, its checks and probes in tests/labs, and its banks. Where the
grader or the sandbox changed, every lab did.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_A_LAB = re.compile(r"(?:solutions/|tests/(?:labs|grading)/).*?\b(?:test_)?(e\d+[a-z]?)(?=[_./])")
OF_ALL = (
    "tests/grader/",
    "tests/grading/conftest.py",
    "tests/grading/bank.py",
    "tests/labs/conftest",
)


def touched(paths: Iterable[str]) -> list[str]:
    """Sorted numbers of the labs that these files of the course belong to."""
    paths = list(paths)
    if any(path.startswith(OF_ALL) for path in paths):
        return sorted(path.name.split("_")[1] for path in (ROOT / "tests/labs").glob("test_e*.py"))
    return sorted({found[1] for found in map(OF_A_LAB.match, paths) if found})


def git(*arguments: str) -> list[str]:
    said = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return said.stdout.split()


def main() -> None:
    (when,) = git("log", "-1", "--format=%ct")
    since = sys.argv[1:] or git("rev-list", "-1", f"--before={int(when) - 86_400}", "HEAD")
    print(*touched(git("diff", "--name-only", *since, "HEAD") if since else ["tests/grader/"]))


if __name__ == "__main__":
    main()
