"""A run's files as they grow: each look reads what is new, of every rank.

A file that has become shorter was cut by a resumed run: it is read anew.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from minitrain.errors import InputError
from minitrain.monitoring.sinks.json_lines import METRICS_FILE, metrics_files, parsed
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
        found = []
        for rank, path in metrics_files(self.folder).items():
            with suppress(FileNotFoundError), path.open("rb") as file:
                size, inode = os.fstat(file.fileno()).st_size, os.fstat(file.fileno()).st_ino
                place = self.places.get(rank, max(0, size - MOST_BYTES))
                if rank in self.inodes and (inode != self.inodes[rank] or size < place):
                    place, self.began_anew = 0, self.began_anew + 1
                file.seek(place)
                text = file.read(size - place)
                whole = text.rfind(b"\n") + 1  # half a line comes again
                self.places[rank], self.inodes[rank] = place + whole, inode
                for line in text[:whole].splitlines():
                    with suppress(ValueError):
                        found.append((rank, parsed(line)))
        found.sort(key=lambda pair: pair[1].get("time", 0.0))
        return found


def open_run(folder: Path) -> Path:
    """The folder, once it is seen to be a run's; InputError where it is not."""
    if metrics_files(folder) or any((folder / name).is_file() for name in RUN_FILES):
        return folder
    what = "is not there" if not folder.is_dir() else f"holds no {METRICS_FILE}"
    raise InputError(f"{folder} {what}: give the folder of a run, such as runs/1M-corpus")
