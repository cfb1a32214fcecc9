"""`python -m minitrain doctor`: can this machine run the course, and what to do where it can't."""

from __future__ import annotations

import sys


def doctor() -> None:
    """Tell whether this machine can run the course; exit code 1 if not."""
    from rich.console import Console

    from minitrain.lab.notebook.health import examine

    console = Console(soft_wrap=True, highlight=False)
    colors = {"ok": "green", "warn": "yellow", "fail": "red"}
    states = []
    for line in examine():
        states.append(line.state)
        remedy = f"  → {line.remedy}" if line.remedy else ""
        state = f"[{colors[line.state]}]{line.state:4}[/]"
        console.print(f"{state}  {line.name:9} ", end="")
        console.print(line.found + remedy, markup=False)
    sys.exit(1 if "fail" in states else 0)
