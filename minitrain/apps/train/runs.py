"""Runs of `python -m minitrain train`: their folders, and the options of one that is resumed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from minitrain.apps.train.mesh_check import FLAGS
from minitrain.apps.train.options import (
    EVENTS_FILE,
    LOCK_FILE,
    LOGGERS,
    MAY_CHANGE,
    RUN_FILE,
    TrainOptions,
    implied,
    new_options,
)
from minitrain.errors import InputError
from minitrain.reliability.elastic import share_of_batch

# Checkpoints do not depend on the mesh; on other ranks the batches stay the same.
MESH_MAY_CHANGE = (*FLAGS, "sequence", "schedule", "chunks", "ranks", "zero")
RANKS_MAY_CHANGE = ("ranks", "accumulate", "zero")
WATCHES = ("notice", "hang_seconds", "audit")


def new_folder(out: Path | None, name: str) -> Path:
    """The run's folder: `out` if it is free, or the first free runs/NAME[-2]."""
    if out is not None:
        if not is_free(out):
            raise InputError(
                f"{out} is there already and is not empty: go on with it by --resume, or give "
                "--out another name"
            )
        return out
    names = [name, *(f"{name}-{number}" for number in range(2, 10_000))]
    return next(Path("runs") / name for name in names if is_free(Path("runs") / name))


LEFT = {RUN_FILE, LOCK_FILE, EVENTS_FILE, *LOGGERS}  # files left by a run without a checkpoint
LEFT_BY_STEPS = ("metrics.", "trace-step-")


def is_free(folder: Path) -> bool:
    """True if the folder is missing, empty, or only has files of a run killed before its first
    checkpoint: the same command may start over."""
    if not folder.is_dir():
        return not folder.exists()
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".step-")}
    left = {name for name in names if name in LEFT or name.startswith(LEFT_BY_STEPS)}
    return names <= {LOCK_FILE} or (RUN_FILE in names and names == left)


def find_run(out: Path | None) -> Path:
    """The run to resume: `out`, or the most recently written one under runs/."""
    if out is not None:
        return out
    found = sorted(Path("runs").glob(f"*/{RUN_FILE}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise InputError("there is no run under runs/ to resume: name one with --out, or start one")
    return found[-1].parent


def resumed_options(run: Path, typed: dict[str, Any]) -> TrainOptions:
    """The stored options of `run`, updated by the typed ones that may change."""
    try:
        stored = json.loads((run / RUN_FILE).read_text(encoding="utf-8"))
        options = TrainOptions(**stored)
    except OSError as error:
        raise InputError(
            f"{run} holds no run to resume ({error.strerror}: {RUN_FILE}): give --out the folder "
            "of one, or start one by leaving --resume out"
        ) from error
    except (TypeError, ValueError) as error:
        raise InputError(f"{run / RUN_FILE} cannot be read ({error}): start a new run") from error
    options = replace(options, corpus_bytes=options.size_of_corpus)
    placing = MESH_MAY_CHANGE if options.on_mesh else RANKS_MAY_CHANGE
    may_change = (*MAY_CHANGE, *WATCHES, *placing)
    for name, value in typed.items():
        before = getattr(options, name)
        if name not in may_change and value != before:
            how = f"without --{name}" if before is None else f"with --{name} {before}"
            raise InputError(
                f"{run} was started {how}, and --resume cannot turn it into {value}: "
                f"leave --{name} out, or start another run with another --out"
            )
    if any(name in typed for name in MAY_CHANGE):
        options = replace(options, **{name: typed.get(name) for name in MAY_CHANGE})
    changed = {name: typed[name] for name in (*WATCHES, *placing) if name in typed}
    if typed.get("ranks") == 1:
        changed.setdefault("zero", 0)
    if not options.on_mesh:
        return replace(options, **{**same_microbatch(options, typed), **changed})
    return replace(options, **changed, **implied(typed, asdict(options)))


def same_microbatch(options: TrainOptions, typed: dict[str, Any]) -> dict[str, int]:
    """Enough microbatches, on another number of ranks, that none is larger than before."""
    ranks = typed.get("ranks", options.ranks)
    if ranks == options.ranks or options.batch % ranks:
        return {}
    return {"accumulate": share_of_batch(options.batch, ranks, options.microbatch).accumulate}


def goes_on(out: Path | None, typed: dict[str, Any]) -> bool:
    """True if `out` holds a run of the same command, perhaps with other ranks, as when torchrun or
    a scheduler restarts it."""
    if out is None or not (out / RUN_FILE).is_file():
        return False
    stored, asked = resumed_options(out, {}), new_options(typed)
    dtype = stored.dtype if asked.dtype == "auto" else asked.dtype  # the one measured to be faster
    stays = ("corpus_bytes", *(() if asked.on_mesh else RANKS_MAY_CHANGE))
    same = {"dtype": dtype, **{name: getattr(stored, name) for name in stays}}
    return asdict(stored) == {**asdict(asked), **same}
