"""The newest step in memory, each rank's part twice: on its own node and on the next.

    rank 0: own, rank 3's │ rank 1: own, rank 0's │ rank 2: own, rank 1's │ rank 3: own, rank 2's
                                    ✗ lost                      ▲ still has rank 1's part

Saves run at network speed, every few steps where the disk allows one an hour; a lost node costs
those few steps. If neighbouring nodes fail together, a disk checkpoint is needed. The parts are in
folders of a file system in memory (/dev/shm), so that they survive the process: torchrun restarts
all ranks when one has died. Cost: 2 x 12 P/N bytes a rank of memory, briefly twice that, and 12 P/N
sent. Paper: Gemini (Wang et al., SOSP 2023). Lab: e12.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch

from minitrain.errors import InputError
from minitrain.ranks.group import Group
from minitrain.ranks.in_place import gather_objects
from minitrain.reliability.checkpoint.contents import (
    CheckpointRanks,
    Layout,
    contents,
    whole_layout,
)
from minitrain.reliability.checkpoint.files import checksums
from minitrain.reliability.checkpoint.folder import (
    NEWEST_TWO,
    Keep,
    begin,
    checkpoints,
    commit,
    final_folder,
    saving_folder,
    step_of,
    turn,
    vote,
)
from minitrain.reliability.checkpoint.save import write_contents
from minitrain.training.state import TrainState

SUMS = "parts.json"
STEPS = 2  # kept: while ranks change to a new one, all still have the previous


class Part(NamedTuple):
    """One rank's part of a step's state, out of `ranks` parts."""

    step: int
    rank: int
    ranks: int

    def __str__(self) -> str:
        return f"part-{self.step}-{self.rank}-{self.ranks}"

    @classmethod
    def named(cls, folder: Path) -> Part:
        return cls(*map(int, folder.name.split("-")[1:]))


class NeighbourMemory:
    """`shelf` is this *node's* folder in memory, used by this run alone; `apart`: ranks per node,
    so that the neighbour is on another one."""

    def __init__(self, group: Group, shelf: str | os.PathLike, apart: int = 1) -> None:
        if group.size > 1 and apart % group.size == 0:
            raise InputError(
                f"{apart} ranks apart, of {group.size}, is the rank itself: give the ranks of a "
                "node, and have at least two nodes"
            )
        self.group, self.shelf = group, Path(shelf)
        self.next = (group.rank + apart) % group.size
        self.before = (group.rank - apart) % group.size

    def save(
        self,
        state: TrainState,
        files: Mapping[str, bytes] | None = None,
        layout: Layout | None = None,
    ) -> None:
        """Collective; afterwards each rank has its own part, and that of the rank before it."""
        ranks = CheckpointRanks(self.group.rank, self.group.size)
        what = contents(state, layout or whole_layout(), ranks, files or {})
        mine = [Part(state.step, rank, ranks.size) for rank in (ranks.rank, self.before)]
        own, held = (self.shelf / f"{part}.new" for part in mine)
        for folder in {own, held}:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        sums = write_contents(own, what)
        (own / SUMS).write_text(json.dumps(sums))
        if held != own:
            self._pass_on(own, held)
        self.group.barrier()  # two copies of every part exist
        for part in dict.fromkeys(mine):
            shutil.rmtree(self.shelf / str(part), ignore_errors=True)  # from a run before this one
            os.rename(self.shelf / f"{part}.new", self.shelf / str(part))
            there = [Part.named(folder) for folder in self.shelf.glob("part-*[0-9]")]
            own = sorted(other for other in there if other.rank == part.rank)
            stay = [other for other in own if other.step <= part.step][-STEPS:]
            for other in own:
                if other not in stay:  # older, or of steps the run has rolled back from
                    shutil.rmtree(self.shelf / str(other))

    def recover(self, run: Path, keep: Keep = NEWEST_TWO) -> Path | None:
        """The newest step with every part still available, as a checkpoint in the run's folder,
        which all ranks see; None if there is none, or if that folder has a newer step, which would
        be removed. Collective; the number of ranks may differ from that of the save."""
        everyone = gather_objects(self.group, self._parts())
        parts = {part for node in everyone for part in node}
        whole = [p for p in parts if all(p._replace(rank=r) in parts for r in range(p.ranks))]
        if not whole:
            return None
        newest = max(whole, key=lambda part: part.step)
        final, on_disk = final_folder(run, newest.step), checkpoints(run)
        if on_disk and step_of(on_disk[-1]) >= newest.step:
            return final if final in on_disk else None
        stack = ExitStack()
        if self.group.rank == 0:
            stack.enter_context(turn(run))
            begin(run, newest.step)
        self.group.barrier()
        for rank in range(newest.ranks):
            part = newest._replace(rank=rank)
            if next(n for n, node in enumerate(everyone) if part in node) == self.group.rank:
                self._bring(part, run)
        self.group.barrier()
        if self.group.rank == 0:
            with stack:
                commit(run, newest.step, newest.ranks, keep)
        self.group.barrier()
        return final

    def _bring(self, part: Part, run: Path) -> None:
        sums = json.loads((self.shelf / str(part) / SUMS).read_text())
        for name in sums:
            shutil.copyfile(self.shelf / str(part) / name, saving_folder(run, part.step) / name)
        vote(run, part.step, part.rank, sums)

    def _parts(self) -> list[Part]:
        """The complete parts on this node."""
        found = []
        for folder in self.shelf.glob("part-*[0-9]"):
            sums = json.loads((folder / SUMS).read_text())
            if checksums(folder, list(sums)) == sums:
                found.append(Part.named(folder))
        return found

    def _pass_on(self, own: Path, held: Path) -> None:
        """Sends this rank's files to the next one, and receives those of the one before."""
        files = {path.name: path.read_bytes() for path in own.iterdir()}
        leaving = torch.frombuffer(bytearray(pickle.dumps(files)), dtype=torch.uint8)
        size = torch.empty(1, dtype=torch.int64)
        self.group.exchange(torch.tensor([len(leaving)]), self.next, size, self.before)
        came = torch.empty(int(size), dtype=torch.uint8)
        self.group.exchange(leaving, self.next, came, self.before)
        for name, content in pickle.loads(came.numpy()).items():
            (held / name).write_bytes(content)
