"""Hugging Face checkpoints of Llama, Mistral and Qwen2, read and written; llama2.c's, read.

A checkpoint is a folder: config.json (config.py), safetensors (weights.py), and the files
of a tokenizer, which are passed on as they are. Writing touches the folder only when all that it
will hold is on the disk: a full disk costs the new checkpoint, never the old one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError

from minitrain.errors import InputError
from minitrain.model.hub.config import hub_config, read_config, read_json
from minitrain.model.hub.weights import (
    INDEX,
    WEIGHTS,
    check_weights,
    copy_weights,
    open_weights,
    write_weights,
)
from minitrain.model.transformer import Transformer, empty

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


@dataclass(frozen=True)
class TextFiles:
    """What a checkpoint says of text: its tokenizer's files, the ids that begin and end a text."""

    tokenizer: tuple[Path, ...] = ()
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()


def load_pretrained(
    folder: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> tuple[Transformer, TextFiles]:
    """A checkpoint's folder -> model and text files; `dtype` None keeps the one it is stored in."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder: give one that holds config.json and {WEIGHTS}, as "
            "`hf download NAME --local-dir FOLDER` leaves it"
        )
    config = read_config(folder / "config.json")
    text = _text_files(folder)
    with ExitStack() as stack:
        stored = open_weights(folder, stack)
        stored_dtype = check_weights(folder, config, stored)
        model = empty(config, device, dtype or stored_dtype)
        copy_weights(model, stored)
    return model, text


def _text_files(folder: Path) -> TextFiles:
    """generation_config.json, where there is one, knows better than config.json."""
    raw = read_json(folder / "config.json")
    if (folder / "generation_config.json").exists():
        raw |= read_json(folder / "generation_config.json")
    eos = raw.get("eos_token_id")
    eos_ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    tokenizer = [folder / name for name in TOKENIZER_FILES if (folder / name).exists()]
    return TextFiles(tuple(tokenizer), raw.get("bos_token_id"), tuple(eos_ids))


def save_pretrained(
    model: Transformer,
    folder: str | Path,
    family: str = "llama",
    text: TextFiles | None = None,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes a folder that `transformers`, vLLM and `load_pretrained` read as the same model."""
    folder, text = Path(folder), text or TextFiles()
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    eos = list(text.eos_ids) if len(text.eos_ids) > 1 else next(iter(text.eos_ids), None)
    ids = {"bos_token_id": text.bos_id, "eos_token_id": eos}
    config = hub_config(model.config, family, dtype) | ids
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as temporary:
            new = Path(temporary)
            write_weights(model, new, shard_bytes)
            for path in text.tokenizer:
                shutil.copy(path, new)
            for name, value in (("generation_config.json", ids), ("config.json", config)):
                (new / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
            _move_in(new, folder)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{folder} cannot be written ({error}): "
            "give a folder in which you may write, on a disk with room"
        ) from error


def _move_in(new: Path, folder: Path) -> None:
    """Renames the new files into place, and removes weights that an older checkpoint left."""
    names = {path.name for path in new.iterdir()}
    for path in (*folder.glob("model*.safetensors"), folder / INDEX):
        if path.name not in names:
            path.unlink(missing_ok=True)
    for name in sorted(names):
        os.replace(new / name, folder / name)
