"""Resuming of `train`: what may differ from the first run, and when it resumes unasked.

Imports no torch, so that a wrong option is answered in a blink.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from minitrain.apps.train.options import (
    MAY_CHANGE,
    MESH_MAY_CHANGE,
    RUN_FILE,
    TrainOptions,
    implied,
    new_options,
)
from minitrain.errors import InputError
from minitrain.reliability.elastic import share_of_batch

RANKS_MAY_CHANGE = ("ranks", "accumulate")  # the batches stay what they are
WATCHES = ("notice", "hang_seconds", "audit")


def resumed_options(run: Path, typed: dict[str, Any]) -> TrainOptions:
    """The options of the run in `run`, with what was typed of those that may change."""
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
    if not options.on_mesh:
        return replace(options, **{**same_microbatch(options, typed), **changed})
    return replace(options, **changed, **implied(typed, asdict(options)))


def same_microbatch(options: TrainOptions, typed: dict[str, Any]) -> dict[str, int]:
    """On other ranks, as many microbatches as it takes for none to be larger than before."""
    ranks = typed.get("ranks", options.ranks)
    if ranks == options.ranks or options.batch % ranks:
        return {}
    return {"accumulate": share_of_batch(options.batch, ranks, options.microbatch).accumulate}


def goes_on(out: Path | None, typed: dict[str, Any]) -> bool:
    """True if `out` holds a run of the very same command, perhaps on other ranks, as torchrun and
    schedulers restart it."""
    if out is None or not (out / RUN_FILE).is_file():
        return False
    stored, asked = resumed_options(out, {}), new_options(typed)
    dtype = stored.dtype if asked.dtype == "auto" else asked.dtype  # what was found to be faster
    placed = {} if asked.on_mesh else {name: getattr(stored, name) for name in RANKS_MAY_CHANGE}
    return asdict(stored) == {**asdict(asked), "dtype": dtype, **placed}
