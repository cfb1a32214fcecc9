"""The model that is fine-tuned: a folder, a run of `train`, a .gguf file, or a name on the hub."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from minitrain.errors import InputError
from minitrain.model.hub.load import load_pretrained
from minitrain.model.hub.text import TextFiles
from minitrain.model.transformer import Transformer
from minitrain.reliability.checkpoint.folder import checkpoints, newest_checkpoint

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
WANTED = ["*.json", "*.safetensors", "tokenizer.model", "merges.txt", "*.jinja"]


def open_model(
    name: str, device: torch.device, dtype: torch.dtype
) -> tuple[Transformer, TextFiles]:
    """Fetches it from the hub where no such path is here."""
    return load_pretrained(find_model(name), device, dtype)


def find_model(name: str) -> Path:
    """The folder or file; of a run its newest checkpoint, which is one too."""
    path = Path(name)
    if path.exists():
        return newest_checkpoint(path) if checkpoints(path) else path
    if not HUB_NAME.fullmatch(name):
        raise InputError(
            f"there is no model {name!r:.80} here: give a Hugging Face folder, a run's folder, a "
            ".gguf file, or a name on the hub such as HuggingFaceTB/SmolLM2-135M"
        )
    return fetch_model(name)


def fetch_model(name: str) -> Path:
    """Into Hugging Face's own cache, from which the next call takes it."""
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
