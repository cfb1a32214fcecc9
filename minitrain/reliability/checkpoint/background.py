"""Asynchronous checkpoints, written beside the training, which hardly waits for them.

    training   save() | forward, backward of the next step | optimizer.step |  forward, backward …
    beside            | copy ............... | write, flush, vote, commit ......................|
                                            ▲
              only optimizer.step changes the copied tensors: it waits until the copy is made

Between two optimizer steps weights and state do not change, so even the copy needs no pause; what
does change in between (buffers, generators, counts) is small, and copied at once. One save at a
time: a second waits for the first. A writer's error is raised at the next call, on every rank.
Cost: another 12 bytes a parameter of CPU memory. Paper: DataStates-LLM (Maurya et al. 2024, arXiv
2406.10707); earlier, with one blocking copy: CheckFreq (Mohan et al., FAST 2021). Lab: e12.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.reliability.checkpoint.contents import (
    ALONE,
    CheckpointRanks,
    Contents,
    Layout,
    whole_layout,
)
from minitrain.reliability.checkpoint.folder import (
    MANIFEST,
    NEWEST_TWO,
    Keep,
    NotSaved,
    vote_against,
)
from minitrain.reliability.checkpoint.save import finish, gather, prepare
from minitrain.training.state import TrainState


class BackgroundSaver:
    """Use `save` in place of `save_checkpoint`, and `wait` at the end of the run.

    `optimizer` updates the weights: its step and its load_state_dict wait for the copy, and so do
    load_checkpoint and SpikeGuard, which call the latter first. Call `wait_copied` before you write
    to weights in another way. `stall_seconds`: the time that training has waited for copies and
    saves. `after` is called on rank 0, beside the training, with each complete checkpoint, for
    example to upload it.
    """

    def __init__(
        self,
        run: str | os.PathLike,
        optimizer: Any,
        ranks: CheckpointRanks = ALONE,
        keep: Keep = NEWEST_TWO,
        layout: Layout | None = None,
        after: Callable[[Path], object] = lambda checkpoint: None,
    ) -> None:
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise InputError(
                f"{type(optimizer).__name__} has no register_step_pre_hook, by which its step "
                "would wait for the copy: give a torch optimizer, or use save_checkpoint"
            )
        self.run, self.ranks, self.keep, self.after = Path(run), ranks, keep, after
        self.layout = layout or whole_layout()
        self.room: dict[str, Tensor] = {}  # the copies' memory, reused
        self.stall_seconds = 0.0
        self._copied = threading.Event()
        self._copied.set()
        self._writer: threading.Thread | None = None
        self._failed: NotSaved | None = None
        self._behind: InputError | None = None
        self._followed: int | None = None  # when the last one given to `after` was made
        optimizer.register_step_pre_hook(lambda *_: self.wait_copied())
        if hasattr(optimizer, "register_load_state_dict_pre_hook"):
            optimizer.register_load_state_dict_pre_hook(lambda *_: self.wait_copied())

    def save(self, state: TrainState, files: Mapping[str, bytes] | None = None) -> None:
        """Collective. Raises NotSaved if the *previous* save failed: then nothing of this one has
        begun, and it may be called again."""
        with self._stall(), ExitStack() as stack:
            self._join()
            error = prepare(self.run, state, self.ranks, stack)
            what = gather(self.run, state, self.layout, self.ranks, files)
            event = _record(what)
            what = self._with_copies(what, still=False)
            self._copied.clear()
            arguments = (what, error, event, stack.pop_all())
            self._writer = threading.Thread(target=self._write, args=arguments)
            self._writer.start()

    def wait_copied(self) -> None:
        """Waits until weights and optimizer may change, even if the copy failed."""
        if not self._copied.is_set():
            with self._stall():
                self._copied.wait()

    def wait(self) -> None:
        """Waits for the last save, at the end of a run. Raises NotSaved if it failed, and on rank 0
        InputError if `after` failed for it."""
        with self._stall():
            self._join()
        if self._behind is not None:
            raise self._behind

    @contextmanager
    def _stall(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.stall_seconds += time.perf_counter() - began

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _write(
        self,
        what: Contents,
        error: Exception | None,
        event: torch.cuda.Event | None,
        turn: ExitStack,
    ) -> None:
        step = what.step
        try:
            try:
                with _beside(event):
                    what = self._with_copies(what, still=True)
            finally:
                self._copied.set()
            with turn:
                checkpoint = finish(self.run, what, self.ranks, self.keep, error)
            self._follow_up(checkpoint)
        except NotSaved as failed:
            self._failed = failed
        except Exception as failed:  # in its own thread: passed to the trainer, not lost
            self._failed = NotSaved(f"step {step} was not saved in {self.run}: {failed!r}")
            with suppress(OSError):  # the others must not wait for this rank
                vote_against(self.run, step, self.ranks.rank)
        if self._failed and not threading.main_thread().is_alive():
            print(f"{self._failed}: call wait() before the process ends", file=sys.stderr)

    def _follow_up(self, checkpoint: Path) -> None:
        """Runs on rank 0 alone; the others cannot know of its error, so it is raised at the end."""
        made = (checkpoint / MANIFEST).stat().st_mtime_ns
        if self.ranks.rank > 0 or made == self._followed:
            return
        try:
            self.after(checkpoint)
        except Exception as failed:
            self._behind = InputError(f"{checkpoint} is whole, but what follows failed: {failed}")
            print(f"{self._behind}; the training goes on", file=sys.stderr)
        else:
            self._behind, self._followed = None, made

    def _with_copies(self, what: Contents, still: bool) -> Contents:
        """The contents with CPU copies of the tensors that are still, or else of the others."""
        tensors = {
            stem: [
                (name, self._copy(f"{stem} {index} {name}", tensor), offsets)
                if (name in what.still) == still
                else (name, tensor, offsets)
                for index, (name, tensor, offsets) in enumerate(boxes)
            ]
            for stem, boxes in what.tensors.items()
        }
        return replace(what, tensors=tensors)

    def _copy(self, key: str, tensor: Tensor) -> Tensor:
        room = self.room.get(key)
        if room is None or room.shape != tensor.shape or room.dtype != tensor.dtype:
            room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self.room[key] = room
        return room.copy_(tensor)


def _record(what: Contents) -> torch.cuda.Event | None:
    """Marks the weights' state at `save`, when a GPU may still be computing them."""
    tensors = [tensor for boxes in what.tensors.values() for _, tensor, _ in boxes]
    on_gpu = [tensor for tensor in tensors if tensor.is_cuda]
    return torch.cuda.current_stream(on_gpu[0].device).record_event() if on_gpu else None


def _beside(event: torch.cuda.Event | None) -> AbstractContextManager:
    """Copies on a GPU stream of their own, once the weights are as at the save: otherwise they
    would queue behind the next step's kernels."""
    if event is None:
        return nullcontext()
    event.synchronize()
    return torch.cuda.stream(torch.cuda.Stream(event.device))
