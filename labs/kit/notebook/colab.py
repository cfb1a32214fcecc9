"""Prepares Google Colab: puts the course on the path, installs what is missing, never torch.

This file stands alone (standard library only): a notebook on Colab fetches the course and runs
this before the package can be imported (`labs/kit/building/colab_cells.py`).
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

KEEP = {"torch", "numpy", "jupyterlab", "ipykernel"}  # Colab's own; another version breaks it


def prepare_colab() -> None:
    """Makes `import minitrain` work, and labs/ the working folder, as in JupyterLab."""
    course = Path(__file__).resolve().parents[3]
    missing = missing_packages((course / "pyproject.toml").read_text(encoding="utf-8"))
    if missing:
        print("installing", ", ".join(missing))
        _run(sys.executable, "-m", "pip", "install", "--quiet", *missing)
    if str(course) not in sys.path:
        sys.path.insert(0, str(course))
    os.chdir(course / "labs")


def missing_packages(pyproject: str) -> list[str]:
    """The package's own requirements that are not installed, without torch and other KEEP
    packages."""
    block = re.search(r"^dependencies = \[(.*?)^\]", pyproject, re.DOTALL | re.MULTILINE)
    wanted = re.findall(r'^\s*"([^"]+)"', block[1], re.MULTILINE) if block else []
    names = {requirement: re.split(r"[^\w.-]", requirement)[0] for requirement in wanted}
    return [r for r, name in names.items() if name not in KEEP and not _installed(name)]


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise RuntimeError(f"'{' '.join(command)}' failed: {''.join(reason)}")
