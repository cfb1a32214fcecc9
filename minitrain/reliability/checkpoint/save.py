"""A checkpoint now, while training waits; `background.py` writes it beside the training.

    every rank   copies nothing, writes its files, votes ─┐
    rank 0                                                └▶ manifest, rename, old ones removed
    every rank   ◀──────────────────────────────────────────  all know that it may be relied on

Cost: 12 bytes a parameter in float32 (weight and AdamW's two means) at the disk's speed. Lab: e12.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

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
    NotSaved,
    begin,
    checkpoints,
    commit,
    final_folder,
    saving_folder,
    step_of,
    vote,
    vote_against,
    was_committed,
)
from minitrain.reliability.checkpoint.keep import NEWEST_TWO, Keep
from minitrain.training.state import TrainState


def save_checkpoint(
    run: Path,
    state: TrainState,
    files: Mapping[str, bytes] | None = None,
    ranks: CheckpointRanks = ALONE,
    keep: Keep = NEWEST_TWO,
    layout: Layout | None = None,
) -> Path:
    """Writes runs/NAME/step-… and returns it; rank 0's `files` (name -> bytes) are kept beside it.

    All ranks call it, with one folder that all of them see. NotSaved, on all of them, where the
    disk is full or the folder cannot be written: the run may go on, older checkpoints are whole.
    A step that is there already is left as it is: a run comes to each step once.
    """
    final = final_folder(run, state.step)
    if final.is_dir():
        return final
    error = prepare(run, state.step, ranks)
    what = contents(state, layout or whole_layout(), ranks, files or {})
    return finish(run, state.step, what, ranks, keep, error)


def prepare(run: Path, step: int, ranks: CheckpointRanks) -> OSError | None:
    """The folder to write into, which all ranks then see; or what rank 0 could not do."""
    error = None
    if ranks.rank == 0:
        try:
            begin(run, step)
        except OSError as failed:
            error = failed
    ranks.barrier()
    return error


def finish(
    run: Path,
    step: int,
    what: Contents,
    ranks: CheckpointRanks,
    keep: Keep,
    error: OSError | None = None,
) -> Path:
    """Writes this rank's part, and waits for the others': the checkpoint, or NotSaved on each."""
    reason: Exception | None = error
    if saving_folder(run, step).is_dir():
        reason = _write(run, step, what, ranks.rank)
        if ranks.rank == 0:
            try:
                commit(run, step, ranks.size, keep)
            except (OSError, NotSaved) as failed:
                reason = reason or failed
    if was_committed(run, step):
        return final_folder(run, step)
    raise not_saved(run, step, reason) from reason


def not_saved(run: Path, step: int, reason: Exception | None) -> NotSaved:
    why = getattr(reason, "strerror", None) or reason or "rank 0 says why"
    whole = [step_of(path) for path in checkpoints(run)]
    newest = f"the newest is step {whole[-1]}" if whole else "there is none yet"
    return NotSaved(
        f"step {step} was not saved in {run} ({why}); {newest}: make room there, or the right to "
        "write"
    )


def _write(run: Path, step: int, what: Contents, rank: int) -> Exception | None:
    """This rank's files and its vote; the reason, where it could not write them."""
    folder = saving_folder(run, step)
    try:
        vote(run, step, rank, write_contents(folder, what))
    except Exception as error:  # whatever it is, the others must not wait for this rank
        with suppress(OSError):  # where not even that is possible, the others' patience ends
            vote_against(run, step, rank)
        return error
    return None


def write_contents(folder: Path, what: Contents) -> Checksums:
    """This rank's files -> their checksums. OSError where they do not fit: then none is left."""
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
            (folder / name).unlink(missing_ok=True)  # so that there is room for the vote
        raise
    return written
