"""Where the repository is known: a badge in the title, and Colab's lines in the set-up cell.

The address stands in pyproject.toml, `[project.urls] Repository = "https://github.com/OWNER/REPO"`;
until it does, notebooks have neither. `notebook/colab.py` is what the lines fetch.
"""

from __future__ import annotations

import re
from pathlib import Path

from nbformat import NotebookNode

from minitrain import __version__

ADDRESS = re.compile(r'^Repository\s*=\s*"https://github\.com/([\w.-]+/[\w.-]+?)/?"', re.MULTILINE)
RAW = "https://raw.githubusercontent.com"
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
OPEN = "https://colab.research.google.com/github"


def repository(root: Path) -> str | None:
    """OWNER/REPO, or None where it is not known."""
    project = root / "pyproject.toml"
    found = ADDRESS.search(project.read_text(encoding="utf-8")) if project.is_file() else None
    return found[1] if found else None


def add_colab(notebook: NotebookNode, lab: str, root: Path) -> None:
    """Changes the title cell and the set-up cell."""
    name, tag = repository(root), f"v{__version__}"
    if name is None:
        return
    title = notebook.cells[0]
    title.source += f"\n\n[![Open in Colab]({BADGE})]({OPEN}/{name}/blob/{tag}/labs/{lab}.ipynb)"
    for cell in notebook.cells:
        if "setup" in cell.metadata.get("tags", []):
            cell.source = f"{colab_lines(name, tag)}\n{cell.source}"
            return


def colab_lines(name: str, tag: str) -> str:
    """Fetches the course and what is missing on Colab, and does nothing anywhere else."""
    return (
        'if "google.colab" in str(get_ipython()):  # fetch the course and what is missing\n'
        "    from urllib.request import urlopen\n"
        f'    exec(urlopen("{RAW}/{name}/{tag}/minitrain/lab/notebook/colab.py").read()); '
        f'prepare_colab("{name}", "{tag}")'
    )
