"""A run's files as they grow: each look reads what is new, of every rank.

A file that has become shorter, or another, was cut by a resumed run: then all are read anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from minitrain.errors import InputError
from minitrain.monitoring.json_lines import METRICS_FILE, metrics_files, parsed
from minitrain.training.report import Sample

RUN_FILES = ("run.json", "finetune.json")  # of a run that has made no step yet
MOST_BYTES = 16 * 2**20  # of a file, at the first look: its end


class Tail:
    """`look()` -> [(rank, sample), …], new since the last one, by time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[int, int] = {}  # bytes read
        self.inodes: dict[int, int] = {}
        self.began_anew = 0  # times

    def look(self) -> list[tuple[int, Sample]]:
        found: list[tuple[int, Sample]] = []
        with ExitStack() as stack:
            files = {}
            for rank, path in metrics_files(self.folder).items():
                with suppress(FileNotFoundError):
                    files[rank] = stack.enter_context(path.open("rb"))
            if any(self._is_another(rank, file) for rank, file in files.items()):
                self.places, self.inodes, self.began_anew = {}, {}, self.began_anew + 1
            for rank, file in files.items():
                found += [(rank, sample) for sample in self._new(rank, file)]
        found.sort(key=lambda pair: pair[1].get("time", 0.0))
        return found

    def _is_another(self, rank: int, file: BinaryIO) -> bool:
        """Not the file that was read, or no longer as long."""
        now = os.fstat(file.fileno())
        known = self.inodes.get(rank, now.st_ino)
        return now.st_ino != known or now.st_size < self.places.get(rank, 0)

    def _new(self, rank: int, file: BinaryIO) -> Iterator[Sample]:
        now = os.fstat(file.fileno())
        place = self.places.get(rank, max(0, now.st_size - MOST_BYTES))
        file.seek(place)
        text = file.read(now.st_size - place)
        whole = text.rfind(b"\n") + 1  # half a line comes again
        self.places[rank], self.inodes[rank] = place + whole, now.st_ino
        for line in text[:whole].splitlines():
            with suppress(ValueError):
                yield parsed(line)


def open_run(folder: Path) -> Path:
    """The folder, once it is seen to be a run's; InputError where it is not."""
    if metrics_files(folder) or any((folder / name).is_file() for name in RUN_FILES):
        return folder
    what = "is not there" if not folder.is_dir() else f"holds no {METRICS_FILE}"
    raise InputError(f"{folder} {what}: give the folder of a run, such as runs/1M-corpus")
