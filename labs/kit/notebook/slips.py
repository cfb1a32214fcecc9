"""Replaces the traceback of a NameError, mostly due to an earlier cell not run, by a card.

Installed by `Lab`, and by the kernels of `make lab` before any cell runs, so that it also helps
after a restart, when there is no `lab`.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from minitrain.paths import course_root

RUN_ABOVE = "After a restart: Run > Run All Above Selected Cell."


def install(lab: str | None = None) -> None:
    """Explains NameErrors of cells from now on; has no effect in plain Python or a test.

    lab: its notebook is searched if Jupyter does not say which one this kernel runs.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or not hasattr(shell, "kernel"):
        return

    def explain(
        shell: Any, kind: type, error: NameError, trace: TracebackType, tb_offset: int | None = None
    ) -> None:
        from minitrain.lab.drawing.cards import waiting_card
        from minitrain.lab.drawing.display import publish

        name = getattr(error, "name", None)
        heading = name and _in_a_cell(shell, trace) and defined_under(name, _notebook(lab))
        if not heading:
            shell.showtraceback((kind, error, trace), tb_offset=1)
            return
        where = f"The cell that defines `{name}` has not run yet: it stands under “{heading}”."
        publish(waiting_card("Run another cell first", f"{where} {RUN_ABOVE}"))
        shell._showtraceback(kind, error, [f"NameError: {error}: run the cell under “{heading}”"])

    shell.set_custom_exc((NameError,), explain)


def defined_under(name: str, notebook: Path | None) -> str:
    """The heading above the first cell that defines or imports `name`; empty where none does."""
    import nbformat

    if notebook is None or not notebook.is_file():
        return ""
    word = re.escape(name)
    written, assigned = rf"(?:def|class) {word}\b", rf"(?:\w+, )*{word}(?:, \w+)* = "
    imported = rf"(?:from \S+ )?import .*\b{word}\b"
    defines = re.compile(rf"^(?:{written}|{assigned}|{imported})", re.MULTILINE)
    heading = "the title"
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "markdown":
            *_, heading = heading, *re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE)
        elif cell.cell_type == "code" and defines.search(cell.source):
            return heading
    return ""


def _in_a_cell(shell: Any, trace: TracebackType) -> bool:
    """True if the name was used in the cell itself, not in a library."""
    while trace.tb_next:
        trace = trace.tb_next
    return trace.tb_frame.f_globals is shell.user_global_ns


def _notebook(lab: str | None) -> Path | None:
    """The notebook that Jupyter says this kernel runs, else the lab's own file in the course."""
    session = Path(os.environ.get("JPY_SESSION_NAME", ""))
    if session.suffix == ".ipynb":
        return session
    return course_root() / "labs" / f"{lab}.ipynb" if lab else None
