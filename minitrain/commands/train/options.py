"""What `python -m minitrain train` was asked for: checked at once, kept in run.json.

Imports no torch, so that a wrong option is answered in a blink.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minitrain.commands.train.mesh_check import FLAGS, Wish, check_mesh
from minitrain.data.corpus import DOMAINS
from minitrain.data.tokenizer import SMALLEST
from minitrain.errors import InputError, unknown_name
from minitrain.model.config import PRESETS

RUN_FILE, LOG_FILE, LOCK_FILE = "run.json", "log.csv", ".lock"
TEXTS = ("corpus", "sotu", "moby-dick", "tinystories")  # any other name is a file's
DTYPES = ("auto", "float32", "bfloat16")
RECOMPUTE = ("none", "selective", "full")
MAY_CHANGE = ("minutes", "steps", "tokens")  # by --resume: a run may be given more
HOW_ON_MESH = ("sequence", "schedule", "chunks")
MESH_MAY_CHANGE = (*FLAGS, *HOW_ON_MESH, "ranks")  # its checkpoints are those of one process


@dataclass(frozen=True)
class TrainOptions:
    """Every option with its default; one of minutes, steps and tokens says when to stop."""

    preset: str = "1M"
    data: str = "corpus"
    domain: str = "village"
    minutes: float | None = None
    steps: int | None = None
    tokens: int | None = None
    batch: int = 8  # sequences a step, over all ranks and microbatches
    length: int = 192
    lr: float = 4e-3
    accumulate: int = 1
    dtype: str = "auto"
    recompute: str = "none"
    vocab: int = 512
    seed: int = 0
    ranks: int = 1
    dp: int | None = None  # one of these given: the ranks are a mesh, of this many along each axis
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    sequence: bool = False
    schedule: str = "1f1b"
    chunks: int = 1

    def __post_init__(self) -> None:
        for name in ("batch", "length", "lr", "accumulate", "ranks", "minutes", "steps", "tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"--{name} {value} is not possible: it must be more than 0")
        limits = [name for name in MAY_CHANGE if getattr(self, name) is not None]
        if len(limits) > 1:
            given = " and ".join(f"--{name}" for name in limits)
            raise InputError(f"{given} each say when to stop: give one of them")
        if self.preset not in PRESETS:
            raise unknown_name("preset", self.preset, PRESETS)
        longest = PRESETS[self.preset].max_length
        if self.length > longest:
            raise InputError(
                f"--length {self.length} is more than {self.preset} can read: use {longest} or less"
            )
        if self.domain not in DOMAINS:
            raise unknown_name("domain of the corpus", self.domain, DOMAINS)
        if self.dtype not in DTYPES:
            raise unknown_name("dtype", self.dtype, DTYPES)
        if self.recompute not in RECOMPUTE:
            raise unknown_name("way of recomputing", self.recompute, RECOMPUTE)
        if self.vocab < SMALLEST:
            raise InputError(
                f"--vocab {self.vocab} is too small: a byte-level vocabulary has 256 bytes, an end "
                "token, and merges beyond them: use 512 or more"
            )
        if self.on_mesh:
            self._check_mesh()
        else:
            self._check_ranks()

    def _check_ranks(self) -> None:
        if self.sequence or self.chunks != 1 or self.schedule != TrainOptions.schedule:
            raise InputError(
                "--sequence, --schedule and --chunks say how a mesh works, and there is none: give "
                "--tp or --pp too"
            )
        parts = self.ranks * self.accumulate
        if self.batch % parts:
            near = max(parts, round(self.batch / parts) * parts)
            raise InputError(
                f"--batch {self.batch} does not divide into {self.ranks} ranks x {self.accumulate} "
                f"microbatches: use --batch {near}"
            )

    def _check_mesh(self) -> None:
        names = ("batch", "length", "accumulate", *HOW_ON_MESH)
        shared = {name: getattr(self, name) for name in names}
        wish = Wish(PRESETS[self.preset], **self.axes, **shared)
        check_mesh(wish if wish.places == self.ranks else replace(wish, ranks=self.ranks))

    @property
    def on_mesh(self) -> bool:
        return any(getattr(self, axis) is not None for axis in FLAGS)

    @property
    def axes(self) -> dict[str, int]:
        """The mesh: how many ranks along each axis."""
        return {axis: 1 if getattr(self, axis) is None else getattr(self, axis) for axis in FLAGS}

    @property
    def row_ranks(self) -> int:
        """Over how many ranks the rows of a batch are split."""
        return self.axes["dp"] * self.axes["ep"] if self.on_mesh else self.ranks

    @property
    def microbatch(self) -> int:
        """Sequences in one forward pass of one rank."""
        return self.batch // (self.row_ranks * self.accumulate)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def new_options(given: dict[str, Any]) -> TrainOptions:
    """The options of a new run from what was typed (None: not given); by default, two minutes."""
    typed = {name: value for name, value in given.items() if value is not None}
    if not any(name in typed for name in MAY_CHANGE):
        typed["minutes"] = 2.0
    return TrainOptions(**typed, **implied(typed, {}))


def implied(typed: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """What follows from the options of a mesh where it is not typed: chunks and ranks."""
    more: dict[str, Any] = {}
    axes = [typed.get(axis) or stored.get(axis) or 1 for axis in FLAGS]
    if "schedule" in typed and "chunks" not in typed:
        more["chunks"] = 2 if typed["schedule"] == "interleaved" else 1
    if "ranks" not in typed and any(axis in typed for axis in FLAGS):
        more["ranks"] = math.prod(axes)
    return more


def resumed_options(run: Path, given: dict[str, Any]) -> TrainOptions:
    """The options of the run in `run`, with the minutes, steps or tokens that were typed."""
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
    typed = {name: value for name, value in given.items() if value is not None}
    may_change = MAY_CHANGE + (MESH_MAY_CHANGE if options.on_mesh else ())
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
    mesh = {name: typed[name] for name in MESH_MAY_CHANGE if name in typed}
    return replace(options, **mesh, **implied(typed, asdict(options))) if mesh else options


def new_folder(out: Path | None, options: TrainOptions) -> Path:
    """Where the run goes: `out` if nothing is there, or the first free runs/PRESET-DATA[-2]."""
    if out is not None:
        if not is_free(out):
            raise InputError(
                f"{out} is there already and is not empty: go on with it by --resume, or give "
                "--out another name"
            )
        return out
    stem = f"{options.preset}-{Path(options.data).stem}"
    names = [stem, *(f"{stem}-{number}" for number in range(2, 10_000))]
    return next(Path("runs") / name for name in names if is_free(Path("runs") / name))


def is_free(folder: Path) -> bool:
    """Nothing is there, or only what is left of a run that was killed before its first checkpoint:
    there is nothing to go on from, so the same command may begin anew."""
    if not folder.is_dir():
        return not folder.exists()
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".step-")}
    return names <= {LOCK_FILE} or (RUN_FILE in names and names <= {RUN_FILE, LOG_FILE, LOCK_FILE})


def find_run(out: Path | None) -> Path:
    """The run to resume: `out`, or the one under runs/ that was written last."""
    if out is not None:
        return out
    found = sorted(Path("runs").glob(f"*/{RUN_FILE}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise InputError("there is no run under runs/ to resume: name one with --out, or start one")
    return found[-1].parent
