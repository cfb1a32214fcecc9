"""What `python -m minitrain train` was asked for: checked at once, kept in run.json.

Imports no torch, so that a wrong option is answered in a blink.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from minitrain.data.corpus import DOMAINS
from minitrain.data.tokenizer import SMALLEST
from minitrain.errors import InputError, unknown_name
from minitrain.model.config import PRESETS

RUN_FILE = "run.json"
TEXTS = ("corpus", "sotu", "moby-dick", "tinystories")  # any other name is a file's
DTYPES = ("auto", "float32", "bfloat16")
RECOMPUTE = ("none", "selective", "full")
MAY_CHANGE = ("minutes", "steps", "tokens")  # by --resume: a run may be given more


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
        self._check_batch()

    def _check_batch(self) -> None:
        parts = self.ranks * self.accumulate
        if self.batch % parts:
            near = max(parts, round(self.batch / parts) * parts)
            raise InputError(
                f"--batch {self.batch} does not divide into {self.ranks} ranks x {self.accumulate} "
                f"microbatches: use --batch {near}"
            )

    @property
    def microbatch(self) -> int:
        """Sequences in one forward pass of one rank."""
        return self.batch // (self.ranks * self.accumulate)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def new_options(given: dict[str, Any]) -> TrainOptions:
    """The options of a new run from what was typed (None: not given); by default, two minutes."""
    typed = {name: value for name, value in given.items() if value is not None}
    if not any(name in typed for name in MAY_CHANGE):
        typed["minutes"] = 2.0
    return TrainOptions(**typed)


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
    for name, value in typed.items():
        if name not in MAY_CHANGE and value != stored[name]:
            raise InputError(
                f"{run} was started with --{name} {stored[name]}, and --resume cannot turn it into "
                f"{value}: leave --{name} out, or start another run with another --out"
            )
    limits = {name: typed[name] for name in MAY_CHANGE if name in typed}
    return replace(options, **{**dict.fromkeys(MAY_CHANGE), **limits}) if limits else options


def new_folder(out: Path | None, options: TrainOptions) -> Path:
    """Where the run goes: `out` if nothing is there, or the first free runs/PRESET-DATA[-2]."""
    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(
                f"{out} is there already and is not empty: go on with it by --resume, or give "
                "--out another name"
            )
        return out
    stem = f"{options.preset}-{Path(options.data).stem}"
    names = [stem, *(f"{stem}-{number}" for number in range(2, 10_000))]
    return next(Path("runs") / name for name in names if not (Path("runs") / name).exists())


def find_run(out: Path | None) -> Path:
    """The run to resume: `out`, or the one under runs/ that was written last."""
    if out is not None:
        return out
    found = sorted(Path("runs").glob(f"*/{RUN_FILE}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise InputError("there is no run under runs/ to resume: name one with --out, or start one")
    return found[-1].parent
