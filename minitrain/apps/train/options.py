"""Options of `python -m minitrain train`: validated at once, stored in run.json.

Imports no torch, so that a wrong option is refused at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from minitrain.apps.kinds import COUNT, HOST, SEED, Kind, named, one_of, real, several, whole
from minitrain.apps.options import Flag, Option, check_fields
from minitrain.apps.train.mesh_check import FLAGS, PANEL, RANKS, MeshRequest, check_mesh
from minitrain.data.text import NAMED
from minitrain.data.tokenizer import SMALLEST
from minitrain.errors import InputError, unknown_name
from minitrain.model.config import PRESETS
from minitrain.optional import require
from minitrain.reliability.notice import address_of

RUN_FILE, LOCK_FILE = "run.json", ".lock"
EVENTS_FILE = "events.jsonl"  # faults: what, when, on which rank
LOGGERS = ("tensorboard", "wandb")
TEXTS = ("corpus", *NAMED)  # any other name is a file
MAY_CHANGE = ("minutes", "steps", "tokens")  # by --resume: a run may be extended
SINKS = "Where each step is reported, besides the terminal and metrics.jsonl"
BYTES_PER_MINUTE = 4_000_000  # of the corpus: more than a 1M model reads on two cores
BYTES_PER_TOKEN = 4  # a little more than the corpus has
LEAST_BYTES, MOST_BYTES = 120_000, 64_000_000


def domains() -> Collection[str]:
    from minitrain.data.corpus import DOMAINS  # imports numpy, which --help does not need

    return DOMAINS


def read_text_name(text: str) -> str:
    """A text of the course, or an existing file or folder."""
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
DTYPE = one_of("dtype", lambda: ("auto", "float32", "bfloat16", "fp8"))
OPTIMIZERS = {  # default learning rate, bytes a parameter with its weight and gradient
    "adamw": (4e-3, 16),
    "adam8bit": (4e-3, 10),
    "lion": (2e-3, 12),
    "sgd": (0.6, 12),
    "adafactor": (5e-2, 8),
}
ELEMENTWISE = ("adamw", "lion", "sgd")  # a part of a matrix is updated as in the whole
OPTIMIZER = one_of("optimizer", lambda: OPTIMIZERS)
LOGGER = several(one_of("logger", lambda: LOGGERS))
RECOMPUTE = one_of("way of recomputing", lambda: ("none", "selective", "full"))
NOTICE = Kind("CLOUD", "aws, google, or an http or file address that says so", read_notice)
MINUTES = real(0.001, 10**6)


@dataclass(frozen=True)
class TrainOptions(MeshRequest):
    """Every option with its default; one of minutes, steps and tokens limits the run."""

    preset: Annotated[str, Option(PRESET, "The model's shape, such as 1M, 10M or llama3-8b.")] = (
        "1M"
    )
    data: Annotated[
        str,
        Option(
            TEXT,
            f"One of {', '.join(TEXTS)}, a text file, a folder of .txt and .md files, or a folder "
            "of `data prepare`.",
        ),
    ] = "corpus"
    domain: Annotated[str, Option(DOMAIN, "The world of the corpus's stories.")] = "village"
    minutes: Annotated[
        float | None, Option(MINUTES, "The limit in minutes of the whole command.", "2")
    ] = None
    steps: Annotated[int | None, Option(COUNT, "The limit in steps, instead of minutes.")] = None
    tokens: Annotated[
        int | None, Option(whole(1, 10**15), "The limit in tokens, instead of minutes.")
    ] = None
    optimizer: Annotated[str, Option(OPTIMIZER, f"One of {', '.join(OPTIMIZERS)}.")] = "adamw"
    lr: Annotated[
        float, Option(real(1e-12, 10), "The highest learning rate.", "0.004 for adamw")
    ] = OPTIMIZERS["adamw"][0]
    dtype: Annotated[
        str,
        Option(
            DTYPE,
            "Matmuls in float32, bfloat16, fp8 (emulated where the chip has none), or auto: the "
            "faster of the first two.",
        ),
    ] = "auto"
    compile: Annotated[bool, Flag("Run the model through torch.compile.")] = False
    recompute: Annotated[
        str,
        Option(RECOMPUTE, "To save memory: none, selective, or full at a quarter more compute."),
    ] = "none"
    vocab: Annotated[
        int, Option(whole(SMALLEST, 10**6), "Size of the vocabulary that is learned.")
    ] = 512
    skip_spikes: Annotated[
        bool, Flag("Skip steps whose loss spikes, and go back if it stays high.")
    ] = False
    notice: Annotated[
        str | None,
        Option(NOTICE, "Save and stop when aws, google or an address announces the machine's end."),
    ] = None
    hang_seconds: Annotated[
        float | None,
        Option(real(1, 10**6), "End ranks that are stuck this long; give more than a save takes."),
    ] = None
    audit: Annotated[bool, Flag("Compare the ranks' weights before each save.")] = False
    seed: Annotated[int, Option(SEED, "Seed of the weights, the corpus and the order.")] = 0
    ranks: Annotated[int, Option(RANKS, "Data-parallel processes.", panel=PANEL)] = 1
    zero: Annotated[
        int,
        Option(
            whole(0, 3),
            "ZeRO: ranks divide the optimizer's state (1), gradients too (2), parameters too (3); "
            "a mesh has stage 1.",
            panel=PANEL,
        ),
    ] = 0
    corpus_bytes: int | None = None  # for a resumed run: as at its start, whatever its limit is now

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
        for reason, remedy in self._combinations():
            raise InputError(f"{reason}: {remedy}")
        if self.on_mesh:
            check_mesh(config, self.request)
        else:
            self._check_ranks()

    def _combinations(self) -> Iterator[tuple[str, str]]:
        """Combinations that cannot run: the reason, and the remedy."""
        cut = "a mesh" if self.on_mesh else f"--zero {self.zero}"
        if self.on_mesh or self.zero:
            for name in ("skip_spikes", "audit"):
                if getattr(self, name):
                    flag = f"--{name.replace('_', '-')}"
                    yield f"{flag} compares whole models, and {cut} cuts them", f"leave {flag} out"
            if self.optimizer not in ELEMENTWISE:
                yield (
                    f"--optimizer {self.optimizer} needs whole matrices, and {cut} cuts them",
                    f"use one of {', '.join(ELEMENTWISE)}",
                )
        if self.on_mesh and self.dtype == "fp8":
            yield "--dtype fp8 is for models that are not cut by a mesh", "use bfloat16, or --zero"
        if self.on_mesh and self.zero > 1:
            yield (
                f"a mesh has ZeRO's stage 1, not {self.zero}",
                "use --zero 1, or leave out its axes",
            )
        if self.compile and (self.on_mesh or self.zero == 3):
            yield "--compile needs a model in one piece", "leave --compile out, or use --zero 2"
        if self.zero and not self.on_mesh and self.ranks == 1:
            yield f"--zero {self.zero} divides memory between ranks", "give --ranks 2 or more"

    def _check_ranks(self) -> None:
        if self.sequence or self.chunks != 1 or self.schedule != TrainOptions.schedule:
            raise InputError(
                "--sequence, --schedule and --chunks are options of a mesh, which is missing: give "
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
        fits = request.places == request.ranks  # then another mesh may have fewer ranks, too
        return replace(request, ranks=None) if fits else request

    @property
    def on_mesh(self) -> bool:
        return any(getattr(self, axis) is not None for axis in FLAGS)

    @property
    def microbatch(self) -> int:
        """Sequences in one forward pass of one rank."""
        row_ranks = self.axes["dp"] * self.axes["ep"] if self.on_mesh else self.ranks
        return self.batch // (row_ranks * self.accumulate)

    @property
    def size_of_corpus(self) -> int:
        """Bytes of corpus, capped, such that the run's first limit reads nothing twice."""
        if self.corpus_bytes is not None:
            return self.corpus_bytes
        if self.minutes is not None:
            wanted = self.minutes * BYTES_PER_MINUTE
        else:
            wanted = (self.tokens or self.steps * self.batch * self.length) * BYTES_PER_TOKEN
        return int(min(max(wanted, LEAST_BYTES), MOST_BYTES))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


@dataclass(frozen=True)
class SinkOptions:
    """The sinks of a run, besides the terminal and metrics.jsonl."""

    log_to: Annotated[
        list | None,
        Option(LOGGER, "One or both of tensorboard and wandb (offline).", panel=SINKS),
    ] = None
    metrics_port: Annotated[
        int | None,
        Option(
            whole(0, 65535),
            "Port for Prometheus; rank 1 has the next one; 0 is any free port.",
            panel=SINKS,
        ),
    ] = None
    metrics_host: Annotated[
        str, Option(HOST, "Use 0.0.0.0 for a Prometheus on another machine.", panel=SINKS)
    ] = "127.0.0.1"
    trace_step: Annotated[
        int | None, Option(COUNT, "A step to write as a trace for Perfetto.", panel=SINKS)
    ] = None

    def __post_init__(self) -> None:
        packages = list(self.log_to or ())
        packages += ["prometheus_client"] if self.metrics_port is not None else []
        require("train", *packages, instead=", or leave its option out")


@dataclass(frozen=True)
class Job:
    """One run of the command, handed to each rank."""

    options: TrainOptions
    folder: Path
    resume: bool  # from the newest checkpoint, or from the start if there is none yet
    again: bool  # by the same command: an already complete run is not an error
    device: str | None
    started: float  # time.time() when the command began: its minutes count from there
    stop_file: Path  # exists once the run has been asked to stop
    sinks: SinkOptions = SinkOptions()


def new_options(typed: dict[str, Any]) -> TrainOptions:
    """The options of a new run from the typed ones; by default, two minutes."""
    if not any(name in typed for name in MAY_CHANGE):
        typed = {**typed, "minutes": 2.0}
    return TrainOptions(**{**typed, **implied(typed, {}), **prepared_vocab(typed)})


def prepared_vocab(typed: dict[str, Any]) -> dict[str, int]:
    """The vocabulary of --data, if it is prepared."""
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
    """The optimizer's learning rate; chunks and ranks of a mesh; if not typed."""
    more: dict[str, Any] = {}
    if "lr" not in typed and typed.get("optimizer") in OPTIMIZERS:
        more["lr"] = stored.get("lr") or OPTIMIZERS[typed["optimizer"]][0]
    axes = [typed.get(axis) or stored.get(axis) or 1 for axis in FLAGS]
    if "schedule" in typed and "chunks" not in typed:
        more["chunks"] = 2 if typed["schedule"] == "interleaved" else 1
    if "ranks" not in typed and any(axis in typed for axis in FLAGS):
        more["ranks"] = math.prod(axes)
    return more
