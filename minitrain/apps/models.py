"""Opens the model of a command: a folder, a run of `train`, a .gguf file, or a name.

A name is an asset of the course (`python -m minitrain assets`), or one on the hub.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from minitrain.apps.kinds import Kind, named
from minitrain.errors import InputError

if TYPE_CHECKING:
    import torch

    from minitrain.model.hub.text import TextFiles
    from minitrain.model.transformer import Transformer

OWN = ("stories15M", "smollm2-135m-instruct")  # the course's assets that are models
MODEL = Kind("MODEL", "a folder, a .gguf file, or a name on the hub", lambda text: str(named(text)))
MODEL_HELP = (
    f"A Hugging Face folder, a run, a .gguf file, {OWN[0]}, {OWN[1]}, or a name on the hub."
)
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
FINETUNED = "finetune.json"  # the options of a `finetune` run
WANTED = ["*.json", "*.safetensors", "tokenizer.model", "merges.txt", "*.jinja"]


def open_model(
    name: str, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> tuple[Transformer, TextFiles]:
    """Fetches a model that is not a path; `dtype` None keeps the stored one.

    A folder written by `quantize` always keeps its own: its weights are not rounded again.
    """
    from minitrain.model.hub.load import load_pretrained
    from minitrain.quantization.folder import is_quantized, load_quantized

    path = find_model(name)
    if is_quantized(path):
        return load_quantized(path, device)
    return load_pretrained(path, device, dtype)


def find_model(name: str) -> Path:
    """The folder or file; for a run its newest checkpoint, which is also a model folder."""
    from minitrain.data.assets.fetch import fetch
    from minitrain.reliability.checkpoint.folder import checkpoints, newest_checkpoint

    path = Path(name)
    if path.exists():
        refuse_adapter(path)
        return newest_checkpoint(path) if checkpoints(path) else path
    if name in OWN:
        return fetch(name)
    if not HUB_NAME.fullmatch(name):
        raise InputError(
            f"there is no model {name!r:.80} here: give a Hugging Face folder, a run's folder, a "
            f".gguf file, {' or '.join(OWN)}, or a name on the hub as HuggingFaceTB/SmolLM2-135M"
        )
    return fetch_model(name)


def refuse_adapter(path: Path) -> None:
    """InputError for PEFT's files and a run of `finetune`, which hold no whole model."""
    from minitrain.finetuning.peft_files import CONFIG

    if (path / "model").is_dir() and (path / FINETUNED).is_file():
        raise InputError(f"its model lies in {path / 'model'}: give that, {path} is the run")
    if (path / CONFIG).is_file() or (path / FINETUNED).is_file():
        merged = f"{path}-merged"
        command = f"merge {shlex.quote(str(path))} --out {shlex.quote(merged)}"
        raise InputError(
            f"{path} holds an adapter, and no model: merge the two with "
            f"python -m minitrain {command}, and give {merged}"
        )


def refuse_taken(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already and is not empty: give --out another name")


def fetch_model(name: str) -> Path:
    """Downloads into Hugging Face's own cache, or finds it there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=WANTED))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"{name} is not here and could not be fetched from the hub ({reason:.120}): give a "
            "folder, or check the name and the network"
        ) from error
