"""Our checkpoints against torch.distributed.checkpoint: seconds of a save, a load, and the stall.

Model and AdamW's state of a preset, one process, to and from the same disk. Both flush to the disk;
ours also computes checksums while writing, and verifies them before reading, which theirs does not.
Before timing, both must restore the same bits. `stall`: how long a background save blocks training,
ours (save, and the optimizer's wait for the copy) and torch's async_save, which has copied
everything when it returns; `of a save` is our stall against our own blocking save.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict

from minitrain.bench.case import OURS, PEER, TORCH, Case, Steps
from minitrain.bench.steps import next_token_loss, random_text
from minitrain.measure.clock import Comparison, Timing, compare
from minitrain.model.config import preset
from minitrain.model.transformer import build
from minitrain.optimizers.adamw import adamw
from minitrain.reliability.checkpoint.background import BackgroundSaver
from minitrain.reliability.checkpoint.load import load_checkpoint
from minitrain.reliability.checkpoint.save import save_checkpoint
from minitrain.training.state import TrainState

PRESETS = ("1M", "10M", "50M")
PEER_NAME = f"torch.distributed.checkpoint, {TORCH}"
SLOWER = "we read every byte twice, once for its checksum, and they once"
STALLS = "the model is so small that the names and counts take longer than the copy of the weights"


class NoData:
    """A loader without a position."""

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        pass


class Work:
    """A trained model and its folder, which `end` removes."""

    def __init__(self, name: str) -> None:
        model = build(preset(name))
        self.state = TrainState(model, adamw(model, lr=1e-3), NoData())
        self.text = random_text(name, 1, 64, "cpu")
        self.folder = Path(tempfile.mkdtemp(prefix="minitrain-bench-"))
        self.number = 0
        self.backward()
        self.state.optimizer.step()

    def backward(self) -> None:
        self.state.optimizer.zero_grad()
        next_token_loss(self.state.model, self.text).backward()

    def theirs(self) -> dict:
        model, optimizer = get_state_dict(self.state.model, self.state.optimizer)
        return {"model": model, "optim": optimizer}

    def next_folder(self) -> Path:
        self.number += 1
        return self.folder / f"torch-{self.number}"

    def keep_two(self) -> None:
        """Removes their oldest checkpoint once the newest is complete, as ours does: the same load
        on disk and page cache."""
        shutil.rmtree(self.folder / f"torch-{self.number - 2}", ignore_errors=True)

    def save(self) -> None:
        self.state.step += 1
        save_checkpoint(self.folder / "ours", self.state)

    def save_theirs(self) -> None:
        dcp.save(self.theirs(), checkpoint_id=self.next_folder())
        self.keep_two()

    def load(self) -> None:
        load_checkpoint(self.folder / "ours", self.state)

    def load_theirs(self) -> None:
        state = self.theirs()
        dcp.load(state, checkpoint_id=self.folder / f"torch-{self.number}")

    def bits(self) -> dict[str, Tensor]:
        kept = self.state.optimizer.state_dict()["state"].items()
        own = {f"{i} {kind}": t for i, values in kept for kind, t in values.items()}
        return {name: t.clone() for name, t in {**self.state.model.state_dict(), **own}.items()}

    def end(self) -> None:
        shutil.rmtree(self.folder)


def cases(repeats: int = 7, presets: tuple[str, ...] = PRESETS) -> list[Case]:
    out = []
    for name in presets:
        for what in ("save", "load"):
            measure = partial(measured, name, partial(_timed, what, repeats))
            out.append(Case(f"checkpoint {what} {name}", PEER_NAME, measure, SLOWER))
        stall = partial(measured, name, partial(_stalls, repeats))
        out.append(Case(f"checkpoint stall {name}", f"async_save of {TORCH}", stall, STALLS))
        of_save = partial(measured, name, partial(_stall_of_save, repeats))
        out.append(
            Case(f"checkpoint stall of a save {name}", f"our save, {TORCH}", of_save, STALLS)
        )
    return out


def measured(name: str, measure: Callable[[Work], Comparison]) -> Comparison:
    """Runs in a world of one rank, which torch's functions need; both must restore the same
    state."""
    work = Work(name)
    began = not dist.is_initialized()
    if began:
        store = dist.FileStore(str(work.folder / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        before = work.bits()
        for save, load in ((work.save, work.load), (work.save_theirs, work.load_theirs)):
            save()
            with torch.no_grad():
                for tensor in work.state.model.parameters():
                    tensor.zero_()
            load()
            torch.testing.assert_close(work.bits(), before, rtol=0, atol=0)
        return measure(work)
    finally:
        if began:
            dist.destroy_process_group()
        work.end()


def _timed(what: str, repeats: int, work: Work) -> Comparison:
    steps: dict[str, Steps] = {
        "save": {OURS: work.save, PEER: work.save_theirs},
        "load": {OURS: work.load, PEER: work.load_theirs},
    }
    return compare(steps[what], repeats)


def _stalls(repeats: int, work: Work) -> Comparison:
    """Alternates both saves, each during a training step, whose own time is subtracted."""
    saver = BackgroundSaver(work.folder / "ours", work.state.optimizer)
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(_our_stall(work, saver))
        began = time.perf_counter()
        writing = dcp.async_save(work.theirs(), checkpoint_id=work.next_folder())
        theirs.append(time.perf_counter() - began)
        work.backward()
        work.state.optimizer.step()
        writing.result()
        work.keep_two()
    return Comparison({OURS: Timing(tuple(ours)), PEER: Timing(tuple(theirs))})


def _stall_of_save(repeats: int, work: Work) -> Comparison:
    saver = BackgroundSaver(work.folder / "ours", work.state.optimizer)
    stalls, saves = [], []
    for _ in range(repeats):
        stalls.append(_our_stall(work, saver))
        began = time.perf_counter()
        work.save()
        saves.append(time.perf_counter() - began)
    return Comparison({OURS: Timing(tuple(stalls)), PEER: Timing(tuple(saves))})


def _our_stall(work: Work, saver: BackgroundSaver) -> float:
    """Seconds that a step waits, the previous save being complete."""
    work.state.step += 1
    saver.stall_seconds = 0.0
    saver.save(work.state)
    work.backward()
    work.state.optimizer.step()
    stalled = saver.stall_seconds
    saver.wait()
    return stalled
