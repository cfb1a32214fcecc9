"""Paths of the course's own folders, and of the user's cache and progress."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from minitrain.errors import InputError


def course_root() -> Path:
    """The checkout that holds `labs/`, `solutions/`, `tests/` and `data/`."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "labs").is_dir():
        raise InputError(
            f"{root} has no labs/ folder: minitrain runs from a checkout of the course; "
            "clone the repository and install it with 'make setup' or 'pip install -e .'"
        )
    return root


def data_dir() -> Path:
    """The small, documented data that ships with the course."""
    return course_root() / "data"


def cache_dir() -> Path:
    """Downloads and other reproducible files (`~/.cache/minitrain` on Linux)."""
    from platformdirs import user_cache_path

    return _folder(user_cache_path, ".cache/minitrain")


def state_dir() -> Path:
    """Files that must not be lost: a learner's progress (`~/.local/share/minitrain` on Linux)."""
    from platformdirs import user_data_path

    return _folder(user_data_path, ".local/share/minitrain")


def stand_in_home() -> Path:
    """A folder of the checkout, used when the home folder is not writable."""
    return course_root() / ".home"


def _folder(find: Callable[..., Path], name: str) -> Path:
    """The user's own folder, or the stand-in's where that one is not writable."""
    try:
        found = find("minitrain", ensure_exists=True)
    except OSError:
        found = None
    if found is None or not os.access(found, os.W_OK):
        found = stand_in_home() / name
        found.mkdir(parents=True, exist_ok=True)
    return found


def write_atomically(path: Path, text: str) -> None:
    """Writes a file atomically: a kill or crash leaves the old text or the new, never a part."""
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """The same for bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
