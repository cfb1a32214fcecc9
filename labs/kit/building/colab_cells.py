"""Colab's badge in the title and a folded cell that fetches the course, if a release is configured.

The address is in pyproject.toml, `[project.urls] Release = "https://…/course-1.0.zip"`, on any web
server; GitHub makes one of every tag: `https://github.com/OWNER/REPO/archive/refs/tags/TAG.zip`.
Until it is set, notebooks have neither. The cell calls `notebook/colab.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

RELEASE = re.compile(r'^Release\s*=\s*"(https?://\S+\.zip)"', re.MULTILINE)
OF_A_TAG = re.compile(r"https://github\.com/([^/]+/[^/]+)/archive/refs/tags/(.+)\.zip")
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
OPEN = "https://colab.research.google.com/github"
FETCH = """\
# on Colab: fetch the course, and the packages that it lacks
COURSE = "{address}"  # a release, or the folder of a clone
if "google.colab" in str(get_ipython()):
    import glob, runpy, shutil, urllib.request

    if "://" in COURSE:
        archive, _ = urllib.request.urlretrieve(COURSE)
        shutil.unpack_archive(archive, COURSE := "/content/course", "zip")
    found = glob.glob(f"{{COURSE}}/**/labs/kit/notebook/colab.py", recursive=True)
    runpy.run_path(found[0])["prepare_colab"]()"""


def release(root: Path) -> str | None:
    """The address of the course as a .zip, or None if it is not configured."""
    project = root / "pyproject.toml"
    found = RELEASE.search(project.read_text(encoding="utf-8")) if project.is_file() else None
    return found[1] if found else None


def add_colab(notebook: NotebookNode, lab: str, root: Path) -> None:
    """Adds a cell before the set-up cell and, where GitHub has the release, a badge."""
    address = release(root)
    if address is None:
        return
    if tag := OF_A_TAG.fullmatch(address):
        link = f"{OPEN}/{tag[1]}/blob/{tag[2]}/labs/{lab}.ipynb"
        notebook.cells[0].source += f"\n\n[![Open in Colab]({BADGE})]({link})"
    for number, cell in enumerate(notebook.cells):
        if "setup" in cell.metadata.get("tags", []):
            fetch = new_code_cell(FETCH.format(address=address), metadata={"tags": ["folded"]})
            notebook.cells.insert(number, fetch)
            return
