"""What `python -m minitrain train` was asked for: checked at once, kept in run.json.

Imports no torch, so that a wrong option is answered in a blink.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from minitrain.commands.kinds import (
    COUNT,
    SEED,
    Kind,
    Option,
    check_fields,
    named,
    one_of,
    real,
    several,
    whole,
)
from minitrain.commands.train.mesh_check import FLAGS, PANEL, RANKS, MeshRequest, check_mesh
from minitrain.data.text import NAMED
from minitrain.data.tokenizer import SMALLEST
from minitrain.errors import InputError, unknown_name
from minitrain.model.config import PRESETS

RUN_FILE, LOCK_FILE = "run.json", ".lock"
EVENTS_FILE = "events.jsonl"  # what went wrong, when, on which rank
LOGGERS = ("tensorboard", "wandb")
TEXTS = ("corpus", *NAMED)  # any other name is a file's
MAY_CHANGE = ("minutes", "steps", "tokens")  # by --resume: a run may be given more
HOW_ON_MESH = ("sequence", "schedule", "chunks")
MESH_MAY_CHANGE = (*FLAGS, *HOW_ON_MESH, "ranks")  # its checkpoints are those of one process


def domains() -> Collection[str]:
    from minitrain.data.corpus import DOMAINS  # with numpy, that --help can do without

    return DOMAINS


def read_text_name(text: str) -> str:
    """A text of ours, or a file or folder that is there."""
    if text not in TEXTS and not named(text).exists():
        raise unknown_name("text, and no file,", text, TEXTS)
    return text


TEXT = Kind("TEXT", f"{', '.join(TEXTS)}, or a text file", read_text_name)
PRESET = one_of("preset", lambda: PRESETS)
DOMAIN = one_of("domain of the corpus", domains)
DTYPE = one_of("dtype", lambda: ("auto", "float32", "bfloat16"))
LOGGER = several(one_of("logger", lambda: LOGGERS))
RECOMPUTE = one_of("way of recomputing", lambda: ("none", "selective", "full"))
MINUTES = real(0.001, 10**6)


@dataclass(frozen=True)
class TrainOptions(MeshRequest):
    """Every option with its default; one of minutes, steps and tokens says when to stop."""

    preset: Annotated[str, Option(PRESET, "the model's shape")] = "1M"
    data: Annotated[
        str, Option(TEXT, f"{', '.join(TEXTS)}, or a text file, or a folder of .txt and .md")
    ] = "corpus"
    domain: Annotated[str, Option(DOMAIN, "the corpus's world")] = "village"
    minutes: Annotated[
        float | None, Option(MINUTES, "when to stop: minutes of the whole command", "2")
    ] = None
    steps: Annotated[int | None, Option(COUNT, "when to stop, instead of --minutes")] = None
    tokens: Annotated[
        int | None, Option(whole(1, 10**15), "when to stop, instead of --minutes")
    ] = None
    lr: Annotated[float, Option(real(1e-12, 10), "the highest learning rate")] = 4e-3
    dtype: Annotated[str, Option(DTYPE, "float32, bfloat16 matmuls, or auto: the faster")] = "auto"
    recompute: Annotated[
        str,
        Option(RECOMPUTE, "for less memory: none, selective, or full for a quarter more compute"),
    ] = "none"
    vocab: Annotated[int, Option(whole(SMALLEST, 10**6), "tokens to learn from the text")] = 512
    skip_spikes: Annotated[
        bool,
        typer.Option(
            "--skip-spikes",
            help="leave out steps whose loss spikes, and go back if it stays",
        ),
    ] = False
    seed: Annotated[int, Option(SEED, "of weights, corpus and order")] = 0
    ranks: Annotated[int, Option(RANKS, "processes, data-parallel", panel=PANEL)] = 1

    def __post_init__(self) -> None:
        check_fields(self)
        limits = [name for name in MAY_CHANGE if getattr(self, name) is not None]
        if len(limits) > 1:
            given = " and ".join(f"--{name}" for name in limits)
            raise InputError(f"{given} each say when to stop: give one of them")
        config = PRESETS[self.preset]
        if self.length > config.max_length:
            raise InputError(
                f"--length {self.length} is more than {self.preset} can read: use "
                f"{config.max_length} or less"
            )
        if self.on_mesh and self.skip_spikes:
            raise InputError("--skip-spikes is for data-parallel ranks: leave the mesh's axes out")
        if self.on_mesh:
            check_mesh(config, self.request)
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

    @property
    def request(self) -> MeshRequest:
        """What of this a mesh is asked for."""
        names = [field.name for field in fields(MeshRequest)]
        request = MeshRequest(**{name: getattr(self, name) for name in names})
        fits = request.places == request.ranks  # then another mesh may have fewer, too
        return replace(request, ranks=None) if fits else request

    @property
    def on_mesh(self) -> bool:
        return any(getattr(self, axis) is not None for axis in FLAGS)

    @property
    def microbatch(self) -> int:
        """Sequences in one forward pass of one rank, which shares the batch with those of other
        rows."""
        row_ranks = self.axes["dp"] * self.axes["ep"] if self.on_mesh else self.ranks
        return self.batch // (row_ranks * self.accumulate)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


@dataclass(frozen=True)
class Told:
    """Who is told of each step, beside the terminal and metrics.jsonl."""

    log_to: tuple[str, ...] = ()
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    trace_step: int | None = None

    def __post_init__(self) -> None:
        packages = [*self.log_to, *(["prometheus_client"] if self.metrics_port is not None else [])]
        for package in packages:
            if find_spec(package) is None:
                raise InputError(
                    f"{package} is not installed: pip install {package}, or leave its option out"
                )


@dataclass(frozen=True)
class Job:
    """What a rank is told."""

    options: TrainOptions
    folder: Path
    resume: bool  # from its newest checkpoint; from the start where there is none yet
    device: str | None
    started: float  # time.time() when the command began: its minutes count from there
    stop_file: Path  # exists once someone has asked the run to stop
    told: Told = Told()


def new_options(typed: dict[str, Any]) -> TrainOptions:
    """The options of a new run from those that were typed; by default, two minutes."""
    if not any(name in typed for name in MAY_CHANGE):
        typed = {**typed, "minutes": 2.0}
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


def resumed_options(run: Path, typed: dict[str, Any]) -> TrainOptions:
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


LEFT = {RUN_FILE, LOCK_FILE, EVENTS_FILE, *LOGGERS}  # by a run without a checkpoint
LEFT_BY_STEPS = ("metrics.", "trace-step-")


def is_free(folder: Path) -> bool:
    """Nothing is there, or only what is left of a run that was killed before its first checkpoint:
    there is nothing to go on from, so the same command may begin anew."""
    if not folder.is_dir():
        return not folder.exists()
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".step-")}
    left = {name for name in names if name in LEFT or name.startswith(LEFT_BY_STEPS)}
    return names <= {LOCK_FILE} or (RUN_FILE in names and names == left)


def find_run(out: Path | None) -> Path:
    """The run to resume: `out`, or the one under runs/ that was written last."""
    if out is not None:
        return out
    found = sorted(Path("runs").glob(f"*/{RUN_FILE}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise InputError("there is no run under runs/ to resume: name one with --out, or start one")
    return found[-1].parent
