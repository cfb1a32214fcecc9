"""Hugging Face checkpoints, read and written: Llama, Mistral, Qwen2, Mixtral; others are read:
GGUF and llama2.c.

A checkpoint is a folder: config.json (config.py), safetensors (weights.py), and the files
of a tokenizer, which are passed on as they are (text.py). Writing touches the folder only when all
that it will hold is on the disk: a full disk costs the new checkpoint, never the old one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.hub.config import hub_config, read_config
from minitrain.model.hub.gguf import find_gguf, load_gguf
from minitrain.model.hub.llama2c import find_llama2c, load_llama2c, text_files
from minitrain.model.hub.text import TextFiles, read_text_files
from minitrain.model.hub.weights import (
    INDEX,
    WEIGHTS,
    as_stored,
    check_plain,
    check_weights,
    copy_weights,
    open_weights,
    write_weights,
)
from minitrain.model.transformer import Transformer, empty


def load_pretrained(
    folder: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> tuple[Transformer, TextFiles]:
    """A checkpoint's folder, a GGUF file, or llama2.c's model.bin -> model and text files.

    `dtype` None keeps the one that the weights are stored in, of several the one that holds them
    all; a GGUF's become float32.
    """
    model, text = _load(Path(folder), device, dtype)
    model.end_tokens = text.eos_ids
    return model, text


def _load(
    folder: Path, device: torch.device | str, dtype: torch.dtype | None
) -> tuple[Transformer, TextFiles]:
    if (file := find_gguf(folder)) is not None:
        return load_gguf(file, device, dtype or torch.float32)
    if (file := find_llama2c(folder)) is not None:
        model, tokenizer = load_llama2c(file)
        return model.to(device, dtype or torch.float32), text_files(tokenizer)
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not a folder: give one that holds config.json and {WEIGHTS}, as "
            "`hf download NAME --local-dir FOLDER` leaves it, or a .gguf file"
        )
    config = read_config(folder / "config.json")
    text = read_text_files(folder)
    with ExitStack() as stack:
        stored = open_weights(folder, stack)
        config = as_stored(config, stored)
        stored_dtype = check_weights(folder, config, stored)
        model = empty(config, device, dtype or stored_dtype)
        copy_weights(model, stored)
    return model, text


def save_pretrained(
    model: Transformer,
    folder: str | Path,
    family: str | None = None,
    text: TextFiles | None = None,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes a folder that `transformers`, vLLM and `load_pretrained` read as the same model.

    `family`: whose name it gets, where more than one would do; None: the plainest that fits.
    """
    check_plain(model)
    dtype = next(model.parameters()).dtype
    files = describe(model.config, text or TextFiles(), dtype, family)
    write_folder(folder, files, lambda new: write_weights(model, new, shard_bytes))


def write_folder(
    folder: str | Path, files: Mapping[str, bytes], weights: Callable[[Path], None]
) -> None:
    """Writes the files, and what `weights(path)` writes at a path that it is given, all at once."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as temporary:
            new = Path(temporary)
            weights(new)
            for name, content in files.items():
                (new / name).write_bytes(content)
            _move_in(new, folder)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{folder} cannot be written ({error}): "
            "give a folder in which you may write, on a disk with room"
        ) from error


def describe(
    config: ModelConfig, text: TextFiles, dtype: torch.dtype, family: str | None = None
) -> dict[str, bytes]:
    """All files of a checkpoint but the weights: what the model is, and how it reads text."""
    named = str(dtype).removeprefix("torch.")
    values = {
        "config.json": hub_config(config, family, named) | text.ids,
        "generation_config.json": text.ids,
    }
    written = {name: json.dumps(value, indent=2) + "\n" for name, value in values.items()}
    return {**text.tokenizer, **{name: content.encode() for name, content in written.items()}}


def _move_in(new: Path, folder: Path) -> None:
    """Renames the new files into place, and removes weights that an older checkpoint left."""
    names = {path.name for path in new.iterdir()}
    for path in (*folder.glob("model*.safetensors"), folder / INDEX):
        if path.name not in names:
            path.unlink(missing_ok=True)
    for name in sorted(names):
        os.replace(new / name, folder / name)
