"""A figure of `plan` written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from minitrain.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def checked_file(file: Path | None) -> None:
    """Before the work is done: the folder is there, and the name says which kind of picture."""
    if file is None:
        return
    if file.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(f"--picture is '{file}': give a name that ends in .png, .pdf or .svg")
    if not file.resolve().parent.is_dir():
        raise InputError(f"--picture is '{file}': the folder {file.parent} is not there; make it")


def saved(figure: Figure, file: Path) -> None:
    try:
        figure.savefig(file, dpi=150, facecolor="white")
    except OSError as error:
        raise InputError(f"{file} cannot be written ({error.strerror}): give another") from None
