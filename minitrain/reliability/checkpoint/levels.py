"""Multi-level checkpoints: after a failure, recovery takes the newest state that survives.

    level              survives                      costs            how often
    neighbour memory   a process, a node             network          every few steps
    disk               a whole job                   disk             minutes
    object store       the cluster                   wide network     hours

Frequent failures are recovered from frequent saves. How often each: planning/goodput. Paper: SCR
(Moody et al., SC 2010). The object store is any that fsspec supports: s3:// and gs:// (with s3fs,
gcsfs), memory://, a mounted folder:

    BackgroundSaver(run, …, after=partial(upload, url="s3://bucket/runs/a"))     each when complete
    download("s3://bucket/runs/a", run)                                          fetches the newest

A store has no rename: the manifest, written last, makes a folder a checkpoint. Lab: e12.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import fsspec

from minitrain.errors import InputError
from minitrain.reliability.checkpoint.contents import ALONE, CheckpointRanks
from minitrain.reliability.checkpoint.files import flush_folder
from minitrain.reliability.checkpoint.folder import (
    MANIFEST,
    NEWEST_TWO,
    Keep,
    begin,
    checkpoints,
    final_folder,
    newest_whole,
    saving_folder,
    step_of,
    turn,
    verify,
)
from minitrain.reliability.checkpoint.neighbour import NeighbourMemory


def newest_of_levels(
    run: str | os.PathLike,
    memory: NeighbourMemory | None = None,
    url: str | None = None,
    ranks: CheckpointRanks = ALONE,
) -> Path | None:
    """The newest step of any level, as a complete checkpoint in the run's folder; None: start anew.

    Collective. A damaged checkpoint on disk is renamed. If two levels have the same step, the
    nearer one's is taken.
    """
    run = Path(run)
    if ranks.rank == 0:
        newest_whole(run)  # renames damaged ones
    ranks.barrier()
    if memory is not None:
        memory.recover(run)
    if url is not None and ranks.rank == 0:
        here, there = checkpoints(run), remote_steps(url)
        if there and (not here or there[-1] > step_of(here[-1])):
            download(url, run, there[-1])
    ranks.barrier()
    found = checkpoints(run)
    return found[-1] if found else None


def upload(checkpoint: str | os.PathLike, url: str, keep: Keep = NEWEST_TWO) -> None:
    """Copies a complete checkpoint to url/step-…, and removes those that `keep` does not retain,
    and any later ones if this is the run's newest: then the run has rolled back."""
    checkpoint, (there, root) = Path(checkpoint), _open(url)
    folder = f"{root}/{checkpoint.name}"
    there.makedirs(folder, exist_ok=True)  # a store has no folders, a mounted one does
    if there.exists(f"{folder}/{MANIFEST}"):
        there.rm_file(f"{folder}/{MANIFEST}")  # of this step before the run rolled back
    names = sorted(path.name for path in checkpoint.iterdir())
    for name in [*(name for name in names if name != MANIFEST), MANIFEST]:
        there.put_file(str(checkpoint / name), f"{folder}/{name}")
    step, steps = step_of(checkpoint), remote_steps(url)
    is_newest = checkpoint == checkpoints(checkpoint.parent)[-1]
    later = [other for other in steps if is_newest and other > step]
    for step in (*later, *keep.doomed(other for other in steps if other not in later)):
        doomed = f"{root}/step-{step:08d}"
        there.rm_file(f"{doomed}/{MANIFEST}")  # first: without it, the rest is no checkpoint
        there.rm(doomed, recursive=True)


def remote_steps(url: str) -> list[int]:
    """The steps of the complete checkpoints at the URL, in order."""
    there, root = _open(url)
    found = there.glob(f"{root}/step-*/{MANIFEST}")
    return sorted(int(path.split("/")[-2].removeprefix("step-")) for path in found)


def download(url: str, run: str | os.PathLike, step: int | None = None) -> Path:
    """Fetches the newest (or `step`) into the run's folder, verified, as a whole or not at all."""
    run, (there, root) = Path(run), _open(url)
    steps = remote_steps(url)
    if not steps or step not in (None, *steps):
        kept = ", ".join(map(str, steps)) or "none"
        raise InputError(f"{url} has no checkpoint of step {step or 'any'}: it has {kept}")
    step = steps[-1] if step is None else step
    final, saving = final_folder(run, step), saving_folder(run, step)
    if final.is_dir():
        return final
    with turn(run):
        begin(run, step)
        for path in there.ls(f"{root}/{final.name}", detail=False):
            there.get_file(path, str(saving / path.split("/")[-1]))
        try:
            verify(saving)
        except InputError as error:
            shutil.rmtree(saving)
            raise InputError(f"what {url} gave is damaged: {error}") from error
        flush_folder(saving)
        os.rename(saving, final)
        flush_folder(run)
    return final


def _open(url: str) -> tuple[Any, str]:
    try:
        there, root = fsspec.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise InputError(f"{url!r} cannot be opened ({error}): give s3://…, or a folder") from error
    return there, root.rstrip("/")
