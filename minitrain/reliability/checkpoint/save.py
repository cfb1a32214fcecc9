"""Synchronous checkpoints: training waits; `background.py` writes beside the training.

    every rank   copies nothing, writes its files, votes ─┐
    rank 0                                                └▶ manifest, rename, old ones removed
    every rank   ◀──────────────────────────────────────────  all know that the save is complete

Cost: 12 bytes a parameter in float32 (weight and AdamW's two moments) at disk speed. Lab: e12.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from minitrain.errors import InputError
from minitrain.reliability.checkpoint.contents import (
    ALONE,
    CheckpointRanks,
    Contents,
    Layout,
    contents,
    whole_layout,
)
from minitrain.reliability.checkpoint.files import Checksums, apart, write_file, write_tensors
from minitrain.reliability.checkpoint.folder import (
    NEWEST_TWO,
    Keep,
    NotSaved,
    begin,
    check_owner,
    checkpoints,
    commit,
    final_folder,
    give_up,
    saving_folder,
    step_of,
    turn,
    vote,
    vote_against,
    was_committed,
)
from minitrain.training.state import TrainState


def save_checkpoint(
    run: str | os.PathLike,
    state: TrainState,
    files: Mapping[str, bytes] | None = None,
    ranks: CheckpointRanks = ALONE,
    keep: Keep = NEWEST_TWO,
    layout: Layout | None = None,
) -> Path:
    """Writes runs/NAME/step-… and returns it; rank 0's `files` (name -> bytes) are included.

    Collective; all ranks must see the same folder. Raises NotSaved on all of them if the disk is
    full or the folder cannot be written: the run may continue, older checkpoints are complete.
    The new one becomes the newest: the same and later steps of this run, from before a rollback,
    are replaced and removed; if they belong to another run, it raises NotSaved too.
    """
    run = Path(run)
    with ExitStack() as stack:
        error = prepare(run, state, ranks, stack)
        what = gather(run, state, layout or whole_layout(), ranks, files)
        return finish(run, what, ranks, keep, error)


def prepare(
    run: Path, state: TrainState, ranks: CheckpointRanks, stack: ExitStack
) -> Exception | None:
    """The folder to write into, which all ranks then see; or rank 0's error. No other saver writes
    there until `stack` closes."""
    if not isinstance(state.step, int) or state.step < 0:
        raise InputError(f"TrainState.step is {state.step!r}: give a whole number from 0 up")
    error = None
    if ranks.rank == 0:
        try:
            stack.enter_context(turn(run))
            check_owner(run, state.step, state.run)
            begin(run, state.step)
        except (OSError, NotSaved) as failed:
            error = failed
    ranks.barrier()
    return error


def gather(
    run: Path,
    state: TrainState,
    layout: Layout,
    ranks: CheckpointRanks,
    files: Mapping[str, bytes] | None,
) -> Contents:
    """This rank's `contents`; if they cannot be saved, no other rank waits for them."""
    try:
        return contents(state, layout, ranks, files or {})
    except BaseException:
        with suppress(OSError):
            vote_against(run, state.step, ranks.rank)
            if ranks.rank == 0:  # which alone ends a step
                give_up(run, state.step)
        raise


def finish(
    run: Path,
    what: Contents,
    ranks: CheckpointRanks,
    keep: Keep,
    error: Exception | None = None,
) -> Path:
    """Writes this rank's part, and waits for the others': the checkpoint, or NotSaved on each."""
    reason, written, step = error, None, what.step
    if error is None and saving_folder(run, step).is_dir():
        written, reason = _write(run, step, what, ranks.rank)
        if ranks.rank == 0:
            try:
                commit(run, step, ranks.size, keep, owner=what.run)
            except (OSError, NotSaved) as failed:
                reason = reason or failed
    if was_committed(run, step, written):
        return final_folder(run, step)
    raise not_saved(run, step, reason) from reason


def not_saved(run: Path, step: int, reason: Exception | None) -> NotSaved:
    why = getattr(reason, "strerror", None) or reason or "rank 0 says why"
    whole = [step_of(path) for path in checkpoints(run)]
    newest = f"the newest is step {whole[-1]}" if whole else "there is none yet"
    if isinstance(reason, InputError) and type(reason) is not NotSaved:  # has its own remedy
        return NotSaved(f"step {step} was not saved in {run}: {reason}")
    return NotSaved(
        f"step {step} was not saved in {run} ({why}); {newest}: make room there, or the right to "
        "write"
    )


def _write(
    run: Path, step: int, what: Contents, rank: int
) -> tuple[Checksums | None, Exception | None]:
    """This rank's files, and its vote; or the reason why it could not write them."""
    try:
        written = write_contents(saving_folder(run, step), what)
        vote(run, step, rank, written)
    except Exception as error:  # whatever it is, the others must not wait for this rank
        with suppress(OSError):  # if even that fails, the others time out
            vote_against(run, step, rank)
        return None, error
    return written, None


def write_contents(folder: Path, what: Contents) -> Checksums:
    """Writes this rank's files -> their checksums. On OSError, if they do not fit, none is left."""
    parts = {
        f"{stem}.{index}.safetensors" if index else f"{stem}.safetensors": part
        for stem, boxes in what.tensors.items()
        for index, part in enumerate(apart(boxes))
    }
    try:
        written = {name: write_tensors(folder / name, part) for name, part in parts.items()}
        written |= {name: write_file(folder / name, data) for name, data in what.files.items()}
    except OSError:
        for name in (*parts, *what.files):
            (folder / name).unlink(missing_ok=True)  # makes room for the vote
        raise
    return written
