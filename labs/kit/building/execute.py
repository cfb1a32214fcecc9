"""Runs a notebook from top to bottom in a fresh kernel of this Python, and cleans its outputs.

The learner's own progress is not touched: the kernel's is in a temporary folder. Kept outputs have
no timings, live widgets, progress bars or local paths; in place of a picture's sliders, a line says
how to get them.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from tqdm import tqdm
from traitlets.config import Config

from minitrain.errors import InputError
from minitrain.lab.drawing.display import FONT, MUTED
from minitrain.paths import course_root

CELL_TIMEOUT = 600
ENCRYPTED = Config({"KernelManager": {"transport_encryption": "auto"}})  # else the kernel warns
ANSI = re.compile(r"\x1b\[[0-9;]*m")
LINE = re.compile(r"(?:Cell In\[\d+\]|<ipython-input[^>]*>), line (\d+)|---> (\d+) ")
WIDGET = "application/vnd.jupyter.widget-view+json"
SCRIPT = "application/javascript"  # labels a picture's sliders
STILL = "It stands still here: run this cell, and its sliders appear below it."


def execute(notebook: NotebookNode, name: str, folder: Path, quiet: bool = False) -> NotebookNode:
    """An executed, cleaned copy; InputError names the cell and the line that raised."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    run = nbformat.from_dict(notebook)
    at = {"cell": 0}
    bar = tqdm(total=len(run.cells), desc=name, unit="cell", disable=quiet)

    def started(cell: NotebookNode, cell_index: int) -> None:
        at["cell"] = cell_index
        bar.update(cell_index + 1 - bar.n)

    with tempfile.TemporaryDirectory() as scratch:
        client = NotebookClient(
            run, timeout=CELL_TIMEOUT, kernel_name="python3", on_cell_start=started,
            record_timing=False, store_widget_state=False,
            resources={"metadata": {"path": str(folder)}}, config=ENCRYPTED,
        )  # fmt: skip
        try:
            client.execute(env={**os.environ, "XDG_DATA_HOME": scratch})
        except CellExecutionError as error:
            raise InputError(_where(name, run, at["cell"], error.traceback)) from error
        except (CellTimeoutError, DeadKernelError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"{name}, cell {at['cell'] + 1}: {reason}") from error
        finally:
            bar.close()
    for number, cell in enumerate(run.cells, start=1):
        if cell.cell_type == "code":
            cell.metadata.pop("execution", None)
            cell.outputs = clean_outputs(cell.outputs, f"{name}, cell {number}")
    run.metadata = notebook.metadata
    return run


def _where(name: str, run: NotebookNode, index: int, traceback: str) -> str:
    """'e00, cell 12, line 3 (`…`): ValueError: …'"""
    text = ANSI.sub("", traceback)
    lines = [int(a or b) for a, b in LINE.findall(text)]
    source = run.cells[index].source.splitlines()
    line = lines[0] if lines and lines[0] <= len(source) else 1
    reason = [row for row in text.strip().splitlines() if row.strip()][-1]
    return f"{name}, cell {index + 1}, line {line} (`{source[line - 1].strip()}`) raised {reason}"


def clean_outputs(outputs: list[NotebookNode], where: str) -> list[NotebookNode]:
    """Without widgets and progress bars; InputError for warnings and for this machine's paths."""
    kept = []
    for output in outputs:
        if WIDGET in output.get("data", {}):
            continue
        if output.output_type == "stream" and output.name == "stderr":
            if "\r" not in output.text and "it/s" not in output.text:
                raise InputError(f"{where} writes on stderr: {output.text.strip()[:300]}")
            continue
        if SCRIPT in output.get("data", {}):
            html = f'<div style="{FONT}{MUTED}">{STILL}</div>'
            output.data = nbformat.from_dict({"text/html": html, "text/plain": STILL})
        _refuse_paths(output, where)
        kept.append(output)
    return kept


def _refuse_paths(output: NotebookNode, where: str) -> None:
    text = output.get("text", "") + "".join(
        str(part) for mime, part in output.get("data", {}).items() if mime.startswith("text/")
    )
    for place in (str(course_root()), str(Path.home()), tempfile.gettempdir() + "/ipykernel"):
        if place + "/" in text or text.strip().endswith(place):
            raise InputError(f"{where} shows a path of this machine ({place}): print less of it")
