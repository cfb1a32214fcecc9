"""Options of `python -m minitrain finetune`: checked without torch, kept in finetune.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from minitrain.apps.kinds import COUNT, SEED, Kind, named, one_of, real, whole
from minitrain.apps.models import FINETUNED
from minitrain.apps.options import Option, check_fields
from minitrain.apps.train.options import domains
from minitrain.data.text import NAMED
from minitrain.errors import InputError

RUN_FILE, BEFORE_FILE, ADAPTER = FINETUNED, "before.json", "adapter"
# learning rates of published recipes, if --lr is not given
RATES = {"full": 1e-4, "norm": 1e-3, "bitfit": 1e-3, "ia3": 5e-3, "prefix": 1e-2, "prompt": 1e-2}
RATES |= {"p-tuning-v2": 1e-2}
LORA_RATE = 1e-3
RANKED = ("lora", "rslora", "lora+", "dora", "pissa")
SOFT = ("prefix", "p-tuning-v2", "prompt")
BOTTLENECKS = ("houlsby", "parallel")
MERGED = (*RANKED, "ia3", "norm")  # into existing weights
METHODS = (*RANKED, "ia3", *BOTTLENECKS, "bitfit", "norm", *SOFT, "full")


def read_text_name(text: str) -> str:
    """A domain of the corpus, a text that can be fetched, or an existing file or folder."""
    if text not in (*domains(), *NAMED) and not named(text).exists():
        raise InputError(
            f"there is no text {text!r:.80}: give a .jsonl file, a text file, a folder of .txt and "
            f".md, {', '.join(NAMED)}, or a domain of the corpus ({', '.join(domains())})"
        )
    return text


def read_targets(text: str) -> str:
    if not all(part.strip() for part in text.split(",")):
        raise ValueError
    return text


TEXT = Kind(
    "TEXT",
    f"a .jsonl or text file, a folder, {', '.join(NAMED)}, or a domain of the corpus",
    read_text_name,
)
METHOD = one_of("method", lambda: METHODS)
DTYPE = one_of("dtype", lambda: ("float32", "bfloat16"))
TARGETS = Kind("NAME,…", "names of layers with commas between, such as q,v", read_targets)


@dataclass(frozen=True)
class FinetuneOptions:
    """Every option with its default. Rejects options that the method does not take."""

    data: Annotated[
        str | None,
        Option(
            TEXT,
            "The new text: .jsonl with prompt and completion or with messages, a text file, a "
            "folder, sotu, or a domain of the corpus.",
        ),
    ] = None
    old: Annotated[
        str | None,
        Option(TEXT, "A text by which forgetting is measured.", "a domain of the corpus"),
    ] = None
    method: Annotated[str, Option(METHOD, f"One of {', '.join(METHODS)}.")] = "lora"
    rank: Annotated[
        int | None, Option(whole(1, 100_000), "Rank of lora and its variants.", "8")
    ] = None
    alpha: Annotated[
        float | None,
        Option(real(1e-6, 1e6), "Scaling times rank, of lora and its variants.", "16"),
    ] = None
    dropout: Annotated[
        float | None, Option(real(0, 0.99), "Dropout before A, of lora and its variants.", "0")
    ] = None
    targets: Annotated[
        str | None,
        Option(
            TARGETS, "The layers to adapt; with lora also experts.", "by method; lora: all linear"
        ),
    ] = None
    tokens: Annotated[
        int | None, Option(whole(1, 10_000), "Learned tokens of prefix and prompts.", "16")
    ] = None
    bottleneck: Annotated[
        int | None, Option(whole(1, 100_000), "Inner features of houlsby and parallel.", "16")
    ] = None
    steps: Annotated[int, Option(COUNT, "Steps of the optimizer.")] = 200
    batch: Annotated[int, Option(whole(1, 100_000), "Rows a step.")] = 8
    length: Annotated[int, Option(whole(2, 10**6), "Tokens a row.")] = 128
    lr: Annotated[
        float | None, Option(real(1e-12, 10), "The highest learning rate.", "by method")
    ] = None
    dtype: Annotated[str, Option(DTYPE, "The dtype of the model under the adapter.")] = "float32"
    seed: Annotated[int, Option(SEED, "Seed of the adapter, the corpus and the order.")] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.data is None:
            raise InputError(
                "--data is missing: give a .jsonl file, a text file, a folder, or a domain of the "
                f"corpus ({', '.join(domains())})"
            )
        for name, methods in {
            **dict.fromkeys(("rank", "alpha", "dropout"), RANKED),
            "tokens": SOFT,
            "bottleneck": BOTTLENECKS,
            "targets": [m for m in METHODS if m not in (*SOFT, "full")],
        }.items():
            if getattr(self, name) is not None and self.method not in methods:
                raise InputError(
                    f"--{name} is no option of --method {self.method}: leave it out, or use "
                    f"{', '.join(methods)}"
                )
        if self.method == "full" and self.dtype != "float32":
            raise InputError(
                "--method full with --dtype bfloat16 would lose updates of less than 1/256 of a "
                "weight: use float32, or an adapter"
            )

    @property
    def rate(self) -> float:
        return self.lr if self.lr is not None else RATES.get(self.method, LORA_RATE)

    @property
    def method_options(self) -> dict[str, Any]:
        """The given options for `adapt`."""
        names = ("rank", "alpha", "dropout", "targets", "tokens", "bottleneck")
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def old_text(self) -> str:
        """`old`, or the first domain of the corpus that is not the new text itself."""
        return self.old or next(name for name in domains() if name != self.data)


@dataclass(frozen=True)
class Job:
    model: str  # a folder, a .gguf, or a name on the hub
    options: FinetuneOptions
    folder: Path
    resume: bool
    device: str | None
    stop_file: Path

    def to_json(self) -> str:
        return json.dumps({"model": self.model, **asdict(self.options)}, indent=1) + "\n"


def stored_job(folder: Path) -> tuple[str, FinetuneOptions]:
    """The model and the options of a stored run."""
    try:
        stored = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        model = stored.pop("model")
        return model, FinetuneOptions(**stored)
    except OSError as error:
        raise InputError(
            f"{folder} holds no fine-tuning run ({error.strerror}: {RUN_FILE}): give the --out of "
            "one, or start one by leaving --resume out"
        ) from error
    except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
        raise InputError(
            f"{folder / RUN_FILE} cannot be read ({error}): start a new run"
        ) from error


def resumed(folder: Path, model: str | None, typed: dict[str, Any]) -> tuple[str, FinetuneOptions]:
    """The stored model and options; only --steps may be raised."""
    own_model, options = stored_job(folder)
    given = {**typed, **({} if model is None else {"model": model})}
    before = {"model": own_model, **asdict(options)}
    for name, value in given.items():
        if name != "steps" and value != before[name]:
            raise InputError(
                f"{folder} was started with {name} {before[name]}, and --resume cannot turn it "
                f"into {value}: leave it out, or start another run with another --out"
            )
    return own_model, replace(options, steps=typed.get("steps", options.steps))
