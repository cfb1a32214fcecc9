"""Reads and writes Hugging Face checkpoints: Llama, Mistral, Qwen2, Mixtral; also reads GGUF and
llama2.c.

A checkpoint is a folder: config.json (config.py), safetensors, in one file or in shards with an
index, and the tokenizer's files, which are passed on unchanged (text.py). A safetensors file begins
with its tensors' names, shapes and dtypes, so everything is compared with the model before any
weight is read, and a checkpoint is loaded whole or not at all. Saving changes the folder only once
all new files are on disk: if the disk is full, the new checkpoint is lost, never the old one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.hub.config import hub_config, read_config, read_json
from minitrain.model.hub.llama2c import find_llama2c, load_llama2c, text_files
from minitrain.model.hub.text import TextFiles, read_text_files
from minitrain.model.transformer import Transformer, empty

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
HUB_PARTS = {
    "embed": "model.embed_tokens",
    "blocks": "model.layers",
    "norm": "model.norm",
    "head": "lm_head",
    "attention": "self_attn",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    **{name: f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")},
}
EXPERT_PARTS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def load_pretrained(
    folder: str | os.PathLike,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> tuple[Transformer, TextFiles]:
    """A checkpoint's folder, a GGUF file, or llama2.c's model.bin -> model and text files.

    `dtype` None keeps the stored dtype, or if there are several the one that holds them all;
    GGUF weights become float32.
    """
    model, text = _load(Path(folder), device, dtype)
    model.end_tokens = text.eos_ids
    return model, text


def _load(
    folder: Path, device: torch.device | str, dtype: torch.dtype | None
) -> tuple[Transformer, TextFiles]:
    if (file := find_gguf(folder)) is not None:
        from minitrain.model.hub.gguf import load_gguf  # its reader is slow to import

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


def find_gguf(path: Path) -> Path | None:
    """`path` itself, or the only GGUF file in a folder that is not a checkpoint; else None."""
    if (path / "config.json").exists():
        return None
    found = [path] if path.is_file() else sorted(path.glob("*.gguf"))
    return found[0] if len(found) == 1 and found[0].suffix == ".gguf" else None


def save_pretrained(
    model: Transformer,
    folder: str | os.PathLike,
    family: str | None = None,
    text: TextFiles | None = None,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes a folder that `transformers`, vLLM and `load_pretrained` read as the same model.

    `family`: the model family to write; None: the simplest that fits.
    """
    check_plain(model)
    dtype = next(model.parameters()).dtype
    files = describe(model.config, text or TextFiles(), dtype, family)
    write_folder(folder, files, lambda new: write_weights(model, new, shard_bytes))


def write_folder(
    folder: str | os.PathLike, files: Mapping[str, bytes], weights: Callable[[Path], None]
) -> None:
    """Writes the files, and the weights by `weights(path)`: all of them or, on error, none."""
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
    """A checkpoint's files except the weights: configuration, generation settings, tokenizer."""
    named = str(dtype).removeprefix("torch.")
    values = {
        "config.json": hub_config(config, family, named) | text.ids,
        "generation_config.json": text.ids,
    }
    written = {name: json.dumps(value, indent=2) + "\n" for name, value in values.items()}
    return {**text.tokenizer, **{name: content.encode() for name, content in written.items()}}


def _move_in(new: Path, folder: Path) -> None:
    """Renames the new files into place, and removes an older checkpoint's weights."""
    names = {path.name for path in new.iterdir()}
    for path in (*folder.glob("model*.safetensors"), folder / INDEX):
        if path.name not in names:
            path.unlink(missing_ok=True)
    for name in sorted(names):
        os.replace(new / name, folder / name)


# ---- weights ----


def hub_name(name: str) -> str:
    """blocks.3.attention.q.weight -> model.layers.3.self_attn.q_proj.weight"""
    return ".".join(HUB_PARTS.get(part, part) for part in name.split("."))


def hub_tensors(model: Transformer) -> dict[str, Tensor]:
    """The model's tensors under the hub's names, without a tied head's.

    They are views without gradient: copying into one changes the model.
    """
    balanced = model.config.experts and model.config.bias_rate  # then biases are used
    own = dict(model.named_parameters()) | (dict(model.named_buffers()) if balanced else {})
    tensors = {}
    for name, tensor in own.items():
        tensors |= hub_parts(name, tensor.detach())
    return tensors


def hub_parts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """One tensor under its name on the hub; all experts' (E, D, F) as E matrices (F, D)."""
    layer, found, kind = hub_name(name).partition(".mlp.experts.")
    if not found:
        return {hub_name(name).replace(".mlp.router.", ".block_sparse_moe.gate."): tensor}
    place = f"{layer}.block_sparse_moe.experts"
    return {f"{place}.{e}.{EXPERT_PARTS[kind]}.weight": one.t() for e, one in enumerate(tensor)}


def check_plain(model: Transformer) -> None:
    """Raises InputError for wrapped layers, whose names no reader would know."""
    with torch.device("meta"):
        plain = hub_tensors(Transformer(model.config))
    if odd := sorted(set(hub_tensors(model)) ^ set(plain)):
        raise InputError(
            f"this model is more than its config says ({_some(odd)}): merge_and_unload(model) what "
            "was added, or save_adapter(model, folder) that alone"
        )


def open_weights(folder: Path, stack: ExitStack) -> dict[str, safe_open]:
    """-> for each tensor's name, the open file that holds it; `stack` closes them."""
    stored = {}
    for name in _weight_files(folder):
        path = folder / name
        try:
            file = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
        except FileNotFoundError as error:
            raise InputError(f"{path} is missing, and {INDEX} names it: download it") from error
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is damaged ({error}): download it again") from error
        if twice := stored.keys() & file.keys():
            raise InputError(f"{path} holds {min(twice)}, which another file has too: remove one")
        stored |= dict.fromkeys(file.keys(), file)
    return stored


def _weight_files(folder: Path) -> list[str]:
    if (folder / WEIGHTS).exists():
        return [WEIGHTS]
    if (folder / INDEX).exists():
        files = read_json(folder / INDEX).get("weight_map")
        if isinstance(files, dict) and all(Path(str(f)).name == f for f in files.values()):
            return sorted(set(files.values()))
        raise InputError(f"{folder / INDEX} has no weight_map of file names: download it again")
    pickles = [path.name for path in sorted(folder.glob("*.bin"))]
    found = f"only {pickles[0]}, a pickle, which may run any code" if pickles else "no weights"
    raise InputError(f"{folder} holds {found}; it needs {WEIGHTS} or {INDEX}: download those")


def as_stored(config: ModelConfig, stored: dict[str, safe_open]) -> ModelConfig:
    """The configuration with the stored head: if it differs from the embedding, the configuration's
    tying is overridden, as in `transformers`."""
    names = hub_name("embed.weight"), hub_name("head.weight")
    if not config.tied or any(name not in stored for name in names):
        return config
    return replace(config, tied=torch.equal(*(stored[name].get_tensor(name) for name in names)))


def check_weights(folder: Path, config: ModelConfig, stored: dict[str, safe_open]) -> torch.dtype:
    """Checks that the files hold every tensor of the model in its shape and no other -> the dtype
    that holds them all without rounding."""
    with torch.device("meta"):
        model = Transformer(config)
    shapes = {name: list(tensor.shape) for name, tensor in hub_tensors(model).items()}
    if missing := [name for name in shapes if name not in stored]:
        raise InputError(f"{folder} lacks weights that its config.json asks for: {_some(missing)}")
    # Old checkpoints hold RoPE's frequencies, some a tied head's copy: both are redundant.
    known = {*shapes, "lm_head.weight"} if config.tied else set(shapes)
    if spare := [name for name in stored if name not in known and "rotary_emb" not in name]:
        raise InputError(f"{folder} has weights with no place in a model like it: {_some(spare)}")
    slices = {name: stored[name].get_slice(name) for name in shapes}
    found = {name: list(part.get_shape()) for name, part in slices.items()}
    if wrong := [f"{n} is {found[n]}, not {shapes[n]}" for n in shapes if found[n] != shapes[n]]:
        raise InputError(f"{folder} has shapes that its config.json does not mean: {_some(wrong)}")
    dtypes = {name: part.get_dtype() for name, part in slices.items()}
    if odd := [f"{name} is {kind}" for name, kind in dtypes.items() if kind not in DTYPES]:
        raise InputError(f"{folder} is quantized, take the original: {_some(odd)}")
    return reduce(torch.promote_types, (DTYPES[kind] for kind in set(dtypes.values())))


def _some(things: list[str]) -> str:
    more = f" and {len(things) - 3} more" if len(things) > 3 else ""
    return ", ".join(things[:3]) + more


def copy_weights(model: Transformer, stored: dict[str, safe_open]) -> None:
    """Copies the weights into the model, in its dtype and on its device, one tensor at a time."""
    for name, tensor in hub_tensors(model).items():
        tensor.copy_(stored[name].get_tensor(name))


def write_weights(model: Transformer, folder: Path, shard_bytes: int) -> None:
    """Writes one file, or shards under `shard_bytes` each. A tied head is not stored."""
    tensors = {name: tensor.contiguous() for name, tensor in hub_tensors(model).items()}
    shards = split_torch_state_dict_into_shards(tensors, max_shard_size=shard_bytes)
    for file, names in shards.filename_to_tensors.items():
        save_file({name: tensors[name] for name in names}, folder / file, {"format": "pt"})
    if shards.is_sharded:
        index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
