"""A folder with a few operations, and an emulated one whose power can be cut after each of them.

    write    a file's bytes, in the machine's memory        ┐ may be lost, whole or in part
    flush    … they are on the disk                         ┘ until here
    rename   one name for another, at once or not at all    ┐ may be undone, the last first,
    flush_names  … names are on the disk                    ┘ until here

Only what POSIX promises: names and bytes reach the disk in any order, so a file may have its new
name and still be empty (as in ext4 with delayed allocation; Pillai et al., OSDI 2014). Lab: e12.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from minitrain.errors import InputError


class Folder:
    """A real folder; `bytes_per_second` slows it down to a disk shared by many ranks."""

    def __init__(self, path: Path, bytes_per_second: float | None = None) -> None:
        self.path, self.bytes_per_second = path, bytes_per_second
        path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        (self.path / name).write_bytes(data)
        if self.bytes_per_second:
            time.sleep(len(data) / self.bytes_per_second)

    def flush(self, name: str) -> None:
        _fsync(self.path / name)

    def rename(self, old: str, new: str) -> None:
        """Renames a file; an existing `new` is replaced."""
        os.replace(self.path / old, self.path / new)

    def flush_names(self) -> None:
        if os.name != "nt":  # Windows cannot open a folder, and flushes names anyway
            _fsync(self.path)

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def names(self) -> list[str]:
        """The names, in no particular order."""
        return [entry.name for entry in os.scandir(self.path)]


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FragileDisk:
    """The same operations, emulated: `after_cut` yields every state a power cut may leave now.

    `operations` counts those that changed something.
    """

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self._bytes = list((files or {}).values())  # of each file ever made, by its number
        self._safe = [True] * len(self._bytes)
        self._names = {name: number for number, name in enumerate(files or {})}
        self._undoable: list[dict[str, int]] = []  # the names before each unflushed change
        self.operations = 0

    def write(self, name: str, data: bytes) -> None:
        self.operations += 1
        if name not in self._names:
            self._undoable.append(dict(self._names))
            self._names[name] = len(self._bytes)
            self._bytes.append(b"")
            self._safe.append(True)
        self._bytes[self._names[name]] = bytes(data)
        self._safe[self._names[name]] = False

    def flush(self, name: str) -> None:
        self.operations += 1
        self._safe[self._number(name)] = True

    def rename(self, old: str, new: str) -> None:
        self.operations += 1
        number, before = self._number(old), dict(self._names)
        del self._names[old]
        self._names[new] = number
        self._undoable.append(before)

    def flush_names(self) -> None:
        self.operations += 1
        self._undoable.clear()

    def read(self, name: str) -> bytes:
        return self._bytes[self._number(name)]

    def names(self) -> list[str]:
        return list(self._names)

    def after_cut(self) -> Iterator[FragileDisk]:
        """Unflushed bytes are lost, half there or whole; unflushed renames hold up to any point."""
        for names in (*self._undoable, self._names):
            unsafe = [name for name, number in names.items() if not self._safe[number]]
            for shares in product((0.0, 0.5, 1.0), repeat=len(unsafe)):
                files = {name: self._bytes[number] for name, number in names.items()}
                for name, share in zip(unsafe, shares):
                    files[name] = files[name][: int(share * len(files[name]))]
                yield FragileDisk(files)

    def _number(self, name: str) -> int:
        if name not in self._names:
            raise InputError(
                f"the disk has no {name}: it has {', '.join(self._names) or 'nothing'}"
            )
        return self._names[name]


class PowerCut(Exception):
    """The power goes off: the program runs no further."""


class Plug:
    """A `FragileDisk` whose power is cut after its first `after` operations."""

    def __init__(self, disk: FragileDisk, after: int) -> None:
        self.disk, self.after, self.done = disk, after, 0

    def __getattr__(self, name: str) -> object:
        operation = getattr(self.disk, name)
        if name not in ("write", "flush", "rename", "flush_names"):
            return operation

        def guarded(*arguments: object) -> None:
            if self.done == self.after:
                raise PowerCut
            operation(*arguments)
            self.done += 1

        return guarded
