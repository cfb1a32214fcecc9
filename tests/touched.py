"""The labs that changed since a commit: `make test-touched` grades their whole banks.

    python tests/touched.py [COMMIT]    prints e02 e12 …; without a commit, since a day before HEAD

A lab is its master in solutions/, its checks and probes in tests/labs, the modules of their
references, and its banks. Where the grader, the sandbox or a probe of several labs changed, every
lab did.
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
    "tests/labs/",
)
REFERENCE = re.compile(r'"(minitrain[\w.]+):\w+')


def touched(paths: Iterable[str]) -> list[str]:
    """Sorted numbers of the labs that these files of the course belong to."""
    paths = set(paths)
    is_every = any(path.startswith(OF_ALL) and not OF_A_LAB.match(path) for path in paths)
    own = {found[1] for found in map(OF_A_LAB.match, paths) if found}
    checks = {path.name.split("_")[1]: path for path in (ROOT / "tests/labs").glob("test_e*.py")}
    return sorted(n for n in checks if is_every or n in own or references(checks[n]) & paths)


def references(checks: Path) -> set[str]:
    """Files of the package whose code this lab's checks compare with."""
    modules = REFERENCE.findall(checks.read_text(encoding="utf-8"))
    return {f"{module.replace('.', '/')}.py" for module in modules}


def git(*arguments: str) -> list[str]:
    said = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return said.stdout.split()


def main() -> None:
    (when,) = git("log", "-1", "--format=%ct")
    since = sys.argv[1:] or git("rev-list", "-1", f"--before={int(when) - 86_400}", "HEAD")
    print(*touched(git("diff", "--name-only", *since, "HEAD") if since else ["tests/grader/"]))


if __name__ == "__main__":
    main()
