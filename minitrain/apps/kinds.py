"""Kinds of values: each parses its text, or rejects it in one sentence.

    whole(1, 10**6)("1e20", "--gpus")
    InputError: --gpus is '1e20': give a whole number from 1 to 1,000,000

`options` declares a command's options with them. Imports no torch, so that a wrong option is
rejected at once.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from minitrain.errors import InputError, unknown_name


@dataclass(frozen=True)
class Kind:
    """`read` parses the text; it raises ValueError or OSError for invalid input."""

    metavar: str
    allowed: str  # "give ..."
    read: Callable[[str], Any]

    def __call__(self, text: str, label: str) -> Any:
        """The value, or an InputError that names the option `label`."""
        try:
            return self.read(text)
        except InputError:
            raise
        except (ValueError, OSError) as error:
            reason = f" ({error.strerror})" if isinstance(error, OSError) else ""
            raise InputError(f"{label} is {text!r:.80}{reason}: give {self.allowed}") from None


# --- numbers ---


def whole(low: int, high: int) -> Kind:
    """Within [low, high]; 1e6 is 1000000."""

    def read(text: str) -> int:
        value = int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
        if not low <= value <= high or value != int(value):
            raise ValueError
        return int(value)

    return Kind("INTEGER", f"a whole number from {low:,} to {high:,}", read)


def real(low: float, high: float) -> Kind:
    """Within [low, high]; neither nan nor inf."""

    def read(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return Kind("NUMBER", f"a number from {low:,g} to {high:,g}", read)


COUNT = whole(1, 10**9)
SEED = whole(0, 2**63 - 1)


# --- names ---


def one_of(what: str, names: Callable[[], Collection[str]]) -> Kind:
    """One of `names()`, which is called when a value is read; an error suggests the nearest."""

    def read(text: str) -> str:
        if text not in names():
            raise unknown_name(what, text, names())
        return text

    return Kind("NAME", f"the name of a {what}", read)


def full_name(text: str, names: Collection[str]) -> str:
    """e02_data_parallel for e02, where one of the names begins with it; else the text itself."""
    found = [name for name in names if name.startswith(f"{text}_")]
    return found[0] if len(found) == 1 and text not in names else text


def several(kind: Kind) -> Kind:
    """Comma-separated, each once, in the given order."""

    def read(text: str) -> list:
        return list(dict.fromkeys(kind.read(part.strip()) for part in text.split(",")))

    return Kind(f"{kind.metavar},…", f"{kind.allowed}, or several with commas between", read)


def read_device(text: str) -> str:
    if not re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d{1,2})?", text):
        raise ValueError
    return text


def read_host(text: str) -> str:
    """Checked by briefly listening there."""
    family, kind, _, _, address = socket.getaddrinfo(text or "?", 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.bind(address)
    return text


DEVICE = Kind("DEVICE", "cpu, cuda, mps or xpu, cuda:1 for the second", read_device)
HOST = Kind("HOST", "an address of this machine: localhost, or 0.0.0.0 for all", read_host)


# --- files ---


def named(text: str) -> Path:
    """A non-empty, printable path."""
    if not text.strip() or not text.encode():  # a lone surrogate raises ValueError
        raise ValueError
    return Path(text)


def read_file(text: str) -> Path:
    path = named(text)
    path.open("rb").close()
    return path


def read_path(text: str) -> Path:
    path = named(text)
    path.stat()
    return path


def read_new_file(text: str) -> Path:
    """An existing file must be writable; for a new one, its folder."""
    path = named(text)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    path.open("ab").close() if path.exists() else TemporaryFile(dir=path.parent).close()
    return path


def read_picture(text: str) -> Path:
    if Path(text).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError
    return read_new_file(text)


def read_folder(text: str) -> Path:
    """A folder, existing or to be created: it, or its nearest existing parent, must be writable."""
    path = named(text)
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    TemporaryFile(dir=there).close()
    return path


FILE = Kind("FILE", "a file that is there and can be read", read_file)
PATH = Kind("PATH", "a file or folder that is there", read_path)
NEW_FILE = Kind("FILE", "a file in a folder that is there and can be written", read_new_file)
PICTURE = Kind("FILE", "a file that can be written, named .png, .pdf or .svg", read_picture)
FOLDER = Kind("FOLDER", "a folder that can be written", read_folder)
