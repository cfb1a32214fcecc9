"""`python -m minitrain doctor`: checks that this machine can run the course, with remedies."""

from __future__ import annotations

import sys
from typing import NoReturn

COLORS = {"ok": "32", "warn": "33", "fail": "31"}  # a terminal's green, yellow, red


def doctor() -> None:
    """Check that this machine can run the course; exit code 1 if it cannot.

    minitrain doctor
    minitrain doctor > findings.txt
    """
    from minitrain.lab.notebook.health import examine

    states = []
    for line in examine():
        states.append(line.state)
        remedy = f"  → {line.remedy}" if line.remedy else ""
        state = f"{line.state:4}"
        if sys.stdout.isatty():
            state = f"\033[{COLORS[line.state]}m{state}\033[0m"
        print(f"{state}  {line.name:9} {line.found}{remedy}", flush=True)
    sys.exit(1 if "fail" in states else 0)


def before_setup(arguments: list[str]) -> NoReturn:
    """Before packages are installed: `doctor` reports missing ones; other commands name the
    remedy."""
    if arguments[:1] == ["doctor"]:
        doctor()
    print(
        "error: the course's packages are not installed in this Python:", file=sys.stderr, end=" "
    )
    print("run 'make setup', then .venv/bin/python -m minitrain …", file=sys.stderr)
    sys.exit(2)
