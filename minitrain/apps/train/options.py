"""Options of `python -m minitrain train`: checked at once, kept in run.json.

Imports no torch, so that a wrong option is answered in a blink.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from minitrain.apps.kinds import (
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
from minitrain.apps.train.mesh_check import FLAGS, PANEL, RANKS, MeshRequest, check_mesh
from minitrain.data.text import NAMED
from minitrain.data.tokenizer import SMALLEST
from minitrain.errors import InputError, unknown_name
from minitrain.model.config import PRESETS
from minitrain.optional import require
from minitrain.reliability.notice import address_of

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


def prepared_folder(data: str) -> Path | None:
    """The folder that --data names, if `data prepare` made it or is making it."""
    from minitrain.data.stream.token_files import holds_tokens

    return Path(data) if data not in TEXTS and holds_tokens(Path(data)) else None


def read_notice(text: str) -> str:
    address_of(text)
    return text


TEXT = Kind("TEXT", f"{', '.join(TEXTS)}, or a text file", read_text_name)
PRESET = one_of("preset", lambda: PRESETS)
DOMAIN = one_of("domain of the corpus", domains)
DTYPE = one_of("dtype", lambda: ("auto", "float32", "bfloat16"))
LOGGER = several(one_of("logger", lambda: LOGGERS))
RECOMPUTE = one_of("way of recomputing", lambda: ("none", "selective", "full"))
NOTICE = Kind("CLOUD", "aws, google, or an http or file address that says so", read_notice)
MINUTES = real(0.001, 10**6)


@dataclass(frozen=True)
class TrainOptions(MeshRequest):
    """Every option with its default; one of minutes, steps and tokens says when to stop."""

    preset: Annotated[str, Option(PRESET, "the model's shape")] = "1M"
    data: Annotated[
        str,
        Option(
            TEXT,
            f"{', '.join(TEXTS)}, a text file, a folder of .txt and .md, or one of `data prepare`",
        ),
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
    notice: Annotated[
        str | None,
        Option(NOTICE, "save and end when aws, google or an address says that the machine goes"),
    ] = None
    hang_seconds: Annotated[
        float | None,
        Option(real(1, 10**6), "end ranks that are stuck so long; over a step and a save"),
    ] = None
    audit: Annotated[
        bool, typer.Option("--audit", help="compare the ranks' weights before each save")
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
        for name in ("skip_spikes", "audit"):
            if self.on_mesh and getattr(self, name):
                flag = f"--{name.replace('_', '-')}"
                raise InputError(f"{flag} is for data-parallel ranks: leave the mesh's axes out")
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
            able = [n for n in range(1, self.ranks) if self.batch % (n * self.accumulate) == 0]
            fewer = f", or --ranks {able[-1]}" if able else ""
            raise InputError(
                f"--batch {self.batch} does not divide into {self.ranks} ranks x {self.accumulate} "
                f"microbatches: use --batch {near}{fewer}"
            )

    @property
    def request(self) -> MeshRequest:
        """The part of the options that a mesh must satisfy."""
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
    """The sinks of a run, beside the terminal and metrics.jsonl."""

    log_to: tuple[str, ...] = ()
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    trace_step: int | None = None

    def __post_init__(self) -> None:
        packages = [*self.log_to, *(["prometheus_client"] if self.metrics_port is not None else [])]
        require("train", *packages, instead=", or leave its option out")


@dataclass(frozen=True)
class Job:
    """The job of a rank."""

    options: TrainOptions
    folder: Path
    resume: bool  # from its newest checkpoint; from the start where there is none yet
    again: bool  # by the same command: where nothing is left to do, that is no error
    device: str | None
    started: float  # time.time() when the command began: its minutes count from there
    stop_file: Path  # exists once someone has asked the run to stop
    told: Told = Told()


def new_options(typed: dict[str, Any]) -> TrainOptions:
    """The options of a new run from those that were typed; by default, two minutes."""
    if not any(name in typed for name in MAY_CHANGE):
        typed = {**typed, "minutes": 2.0}
    return TrainOptions(**{**typed, **implied(typed, {}), **prepared_vocab(typed)})


def prepared_vocab(typed: dict[str, Any]) -> dict[str, int]:
    """The tokens of --data, where it is prepared."""
    folder = prepared_folder(typed.get("data", TrainOptions.data))
    if folder is None:
        return {}
    from minitrain.data.stream.token_files import read_index

    size = read_index(folder).vocab_size
    if typed.get("vocab", size) != size:
        raise InputError(
            f"--vocab {typed['vocab']} is not what {folder} was prepared with, which is {size}: "
            "leave --vocab out, or prepare it anew"
        )
    return {"vocab": size}


def implied(typed: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Options of a mesh that follow from others where they are not typed: chunks and ranks."""
    more: dict[str, Any] = {}
    axes = [typed.get(axis) or stored.get(axis) or 1 for axis in FLAGS]
    if "schedule" in typed and "chunks" not in typed:
        more["chunks"] = 2 if typed["schedule"] == "interleaved" else 1
    if "ranks" not in typed and any(axis in typed for axis in FLAGS):
        more["ranks"] = math.prod(axes)
    return more


def new_folder(out: Path | None, options: TrainOptions) -> Path:
    """The run's folder: `out` if nothing is there, or the first free runs/PRESET-DATA[-2]."""
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
