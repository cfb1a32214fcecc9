"""A run's checkpoints on disk, each complete or absent, whichever process is killed at any time.

    runs/NAME/.step-00000120.saving/     each rank writes its files, flushes them, then its *vote*:
                                         their checksums in a small file, or that it failed
             … /manifest.json            by rank 0, once all votes are there
    runs/NAME/step-00000120/             one atomic rename

If a process is killed at any moment, the disk holds the previous checkpoint or the new one, never
half of one; the next run removes what the kill left. One saver at a time writes into a folder.

A run that has rolled back reaches a step again: its save replaces the older one, and later ones are
removed, oldest first, so that after a kill the newest is the old checkpoint or the new one:

    step 5 10 15    back to 10, saved: 5 10' 15    15 removed: 5 10'

Votes are files, not messages: a background writer must not mix its messages with the training's.
Retention keeps the newest to resume from, and some older ones to roll back to. Runs have gone back
by hundreds of steps after a loss spike (PaLM, arXiv 2204.02311, section 5.1), and a silent
corruption is found late: the newest two alone do not help then. Lab: e12.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from minitrain.errors import InputError
from minitrain.reliability.checkpoint.files import Checksums, checksums, flush_folder, write_file


@dataclass(frozen=True)
class Keep:
    """Keeps the newest `last`, and each whose step is a multiple of `every`, if given:
    Keep(last=2, every=100) keeps steps 100 200 … for ever, and the newest two."""

    last: int = 2
    every: int | None = None

    def __post_init__(self) -> None:
        if self.last < 1 or (self.every is not None and self.every < 1):
            raise InputError(
                f"Keep(last={self.last}, every={self.every}): keep at least the newest, last=1 or "
                "more, and every=1 or more steps"
            )

    def doomed(self, steps: Iterable[int]) -> list[int]:
        """The steps to remove."""
        older = sorted(steps)[: -self.last]
        return [step for step in older if self.every is None or step % self.every]


NEWEST_TWO = Keep()


MANIFEST = "manifest.json"
LOCK = ".saving.lock"
STEP = re.compile(r"step-\d{8,}")  # not step-00000015-copy, which someone else made
LEFT = re.compile(r"\.step-\d{8,}\.(saving|removing|given-up)")
PATIENCE_SECONDS = 600.0  # for the slowest rank's files
LOOK_SECONDS = 0.002


class NotSaved(InputError):
    """A checkpoint that could not be written, and why. Every rank raises it for the same step. The
    run can continue: the older ones are complete."""


class Taken(NotSaved):
    """The folder belongs to another run, or another process is writing there."""


def final_folder(run: Path, step: int) -> Path:
    return run / f"step-{step:08d}"


def saving_folder(run: Path, step: int) -> Path:
    return run / f".step-{step:08d}.saving"


def checkpoints(run: str | os.PathLike) -> list[Path]:
    """The complete checkpoints of a run, oldest first; a half-written one has another name."""
    found = (path for path in Path(run).glob("step-*") if STEP.fullmatch(path.name))
    return sorted((path for path in found if (path / MANIFEST).is_file()), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def newest_checkpoint(path: str | os.PathLike) -> Path:
    """`path` itself if it is a checkpoint, or a copy or link of one; else the newest one in the
    run's folder `path`."""
    path = Path(path)
    if path.is_dir() and (path.name.startswith("step-") or (path / MANIFEST).is_file()):
        return path
    if not path.is_dir():
        raise InputError(f"there is no folder {path}: give the folder of a run (runs/NAME)")
    found = checkpoints(path)
    if not found:
        raise InputError(f"{path} holds no checkpoint (step-…): start this run without --resume")
    return found[-1]


def verify(folder: Path) -> dict:
    """Returns the manifest after checking every file against its checksum there."""
    remedy = f"remove {folder} and resume from an older step in {folder.parent}, or start a new run"
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        stated = manifest["files"]
        found = checksums(folder, list(stated))
        broken = [name for name, checksum in stated.items() if found[name] != checksum]
        manifest["ranks"], manifest["step"]  # a manifest has these
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"the checkpoint {folder} cannot be read ({error}): {remedy}") from error
    if broken:
        names = ", ".join(broken)
        raise InputError(f"the checkpoint {folder} is damaged (the checksum of {names}): {remedy}")
    return manifest


def newest_whole(run: str | os.PathLike) -> Path | None:
    """The newest checkpoint whose files match its manifest's checksums, or None. Call it on one
    rank: it renames newer damaged ones, so that the run can save these steps again."""
    for folder in reversed(checkpoints(run)):
        try:
            verify(folder)
        except InputError:
            os.rename(folder, folder.with_name(f"damaged-{folder.name}"))
            continue
        return folder
    return None


# --- writing one: begin (rank 0), vote (each), commit (rank 0) ---


@contextlib.contextmanager
def turn(run: Path) -> Iterator[None]:
    """Waits until no other process or thread saves into the folder; a kill releases the lock."""
    run.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run / LOCK, timeout=PATIENCE_SECONDS, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise Taken(
            f"another process has been saving there for {PATIENCE_SECONDS:g} s: look at it, or "
            "give this run a folder of its own"
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows: the release removes it
            os.unlink(lock.lock_file)
        lock.release()


def check_owner(run: Path, step: int, owner: str) -> None:
    """Raises Taken if another run than `owner` has saved this step or later ones."""
    for path in checkpoints(run):
        if step_of(path) >= step and not _is_of(path, owner):
            raise Taken(
                f"another run has saved {path.name} there: give each run a folder of its own, or "
                "load that checkpoint to go on with it"
            )


def begin(run: Path, step: int) -> None:
    """Makes an empty folder to write into, and removes what a killed run had begun."""
    clear_leftovers(run)
    saving_folder(run, step).mkdir(parents=True)


def _is_of(checkpoint: Path, owner: str | None) -> bool:
    """True if both are of the same run, or one of them does not name its run."""
    return None in (owner, other := _manifest(checkpoint).get("run")) or other == owner


def _manifest(checkpoint: Path) -> dict:
    """The manifest; empty if it cannot be read."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def vote(run: Path, step: int, rank: int, files: Checksums) -> None:
    """This rank's vote for a step: all of these files are on the disk."""
    path = saving_folder(run, step) / f".vote-{rank:03d}"
    new = path.with_suffix(".new")
    write_file(new, json.dumps(files).encode())
    os.replace(new, path)


def vote_against(run: Path, step: int, rank: int) -> None:
    """Votes that this rank could not write its part; an empty file fits even on a full disk."""
    (saving_folder(run, step) / f".vote-{rank:03d}.failed").touch()


def commit(run: Path, step: int, ranks: int, keep: Keep, owner: str | None = None) -> Path:
    """Waits for all votes, and gives the step its final name; later steps of the run are removed.
    After OSError or NotSaved the step is discarded."""
    saving, final = saving_folder(run, step), final_folder(run, step)
    before = _doomed(final)
    try:
        files = dict(sorted(_votes(saving, ranks).items()))
        manifest = {"step": step, "ranks": ranks, "run": owner, "files": files}
        write_file(saving / MANIFEST, json.dumps(manifest, indent=1).encode())
        for path in saving.glob(".vote-*"):
            path.unlink()
        flush_folder(saving)
        with contextlib.suppress(OSError):  # cleaning up must not lose the new one
            _retire(run, step, keep, owner)  # else leftovers of kills after the rename add up
        if _manifest(final).get("files") == files:
            give_up(run, step)  # identical to the existing one, to the last bit
        else:
            _replace(saving, final, before)
    except BaseException:
        give_up(run, step)
        raise
    flush_folder(run)
    forget_after(run, step)
    _retire(run, step, keep, owner)
    return final


def forget_after(run: Path, step: int) -> None:
    """Removes later steps, oldest first, so the newest stays until last; call it on one rank."""
    for path in checkpoints(run):
        if step_of(path) > step:
            _remove(path)


def _replace(saving: Path, final: Path, before: Path) -> None:
    if final.exists():
        os.rename(final, before)
    try:
        os.rename(saving, final)
    except OSError:
        if before.exists():
            os.rename(before, final)
        raise
    if before.exists():
        with contextlib.suppress(OSError):  # the next save removes it
            _delete(before)


def _retire(run: Path, step: int, keep: Keep, owner: str | None) -> None:
    own = (step_of(path) for path in checkpoints(run) if _is_of(path, owner))
    for old in keep.doomed(other for other in own if other <= step):
        _remove(final_folder(run, old))


def give_up(run: Path, step: int) -> None:
    """Renames first: a rank still writing must not put a file into a folder being deleted."""
    saving = saving_folder(run, step)
    gone = saving.with_suffix(".given-up")
    try:
        os.rename(saving, gone)
    except OSError:
        return  # there is none, or no write permission
    shutil.rmtree(gone, ignore_errors=True)


def was_committed(run: Path, step: int, written: Checksums | None) -> bool:
    """Waits until rank 0 has committed the step, or given it up: in that case any checkpoint of
    that step does not match these files."""
    until = time.monotonic() + PATIENCE_SECONDS
    while saving_folder(run, step).is_dir() and time.monotonic() < until and _is_running():
        time.sleep(LOOK_SECONDS)
    files = _manifest(final_folder(run, step)).get("files", {})
    return written is not None and written.items() <= files.items()


def clear_leftovers(run: Path) -> None:
    """Removes what a killed run left half written or half removed."""
    for path in run.glob(".step-*"):
        if LEFT.fullmatch(path.name):
            _delete(path)


def _votes(saving: Path, ranks: int) -> Checksums:
    """Waits for every rank's vote; returns the files of all ranks."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = [path for path in saving.glob(".vote-*") if not path.suffix]  # nor .new, .failed
        if against := sorted(saving.glob(".vote-*.failed")):
            rank = int(against[0].stem.removeprefix(".vote-"))
            raise NotSaved(f"rank {rank} could not write its part")
        if len(found) == ranks:
            votes = [json.loads(path.read_text()) for path in found]
            return {name: checksum for vote in votes for name, checksum in vote.items()}
        if time.monotonic() > until or not _is_running():
            have = {int(path.name.removeprefix(".vote-")) for path in found}
            late = ", ".join(str(rank) for rank in range(ranks) if rank not in have)
            raise NotSaved(f"rank {late} has not written its part within {PATIENCE_SECONDS:g} s")
        time.sleep(LOOK_SECONDS)


def _is_running() -> bool:
    """False in a writer thread of a process about to end: it will wait for no votes."""
    return threading.main_thread().is_alive()


def _remove(checkpoint: Path) -> None:
    """Renames first, so that a kill leaves no checkpoint with only some of its files."""
    os.rename(checkpoint, doomed := _doomed(checkpoint))
    _delete(doomed)


def _doomed(checkpoint: Path) -> Path:
    return checkpoint.with_name(f".{checkpoint.name}.removing")


def _delete(path: Path) -> None:
    """Deletes a path; of a link only the link, not its target."""
    path.unlink() if path.is_symlink() else shutil.rmtree(path)
