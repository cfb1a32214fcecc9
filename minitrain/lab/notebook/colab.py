"""Prepares Google Colab: clones the course at a tag, installs what is missing, never torch.

This file stands alone (standard library only), because a notebook on Colab fetches and runs it
before the package is there:

    exec(urlopen("https://raw.githubusercontent.com/OWNER/REPO/TAG/minitrain/lab/notebook/colab.py").read())
    prepare_colab("OWNER/REPO", "TAG")
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

KEEP = {"torch", "numpy", "jupyterlab", "ipykernel"}  # Colab's own; another version breaks it


def prepare_colab(repository: str, tag: str, folder: str = "/content/course") -> None:
    """Clone once, put the course on the path, install only what is not there."""
    if not Path(folder, "minitrain").is_dir():
        address = f"https://github.com/{repository}.git"
        _run("git", "clone", "--quiet", "--depth=1", f"--branch={tag}", address, folder)
    missing = missing_packages(Path(folder, "pyproject.toml").read_text(encoding="utf-8"))
    if missing:
        print("installing", ", ".join(missing))
        _run(sys.executable, "-m", "pip", "install", "--quiet", *missing)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    os.chdir(Path(folder, "labs"))


def missing_packages(pyproject: str) -> list[str]:
    """The package's own requirements that are not installed, torch and its like left out."""
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
