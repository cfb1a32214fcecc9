"""A hub checkpoint's weights: one safetensors file, or shards and an index of what is where.

A safetensors file begins with a list of its tensors' names, shapes and dtypes. So everything can be
compared with the model before a byte of a weight is read, and a checkpoint is loaded whole or not
at all. The hub's names differ from ours part by part; Mixtral's experts are matrices one by one,
turned, where ours are one tensor of all.
"""

from __future__ import annotations

import json
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
from minitrain.model.hub.config import read_json
from minitrain.model.transformer import Transformer

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


def hub_name(name: str) -> str:
    """blocks.3.attention.q.weight -> model.layers.3.self_attn.q_proj.weight"""
    return ".".join(HUB_PARTS.get(part, part) for part in name.split("."))


def hub_tensors(model: Transformer) -> dict[str, Tensor]:
    """The model's tensors under the hub's names, a tied head's not among them.

    They are views, without gradient: what is copied into one is in the model.
    """
    balanced = model.config.experts and model.config.bias_rate  # then the routers' biases count
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
    """InputError where layers have others in them, whose names no reader would know."""
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
    """A head of its own in the files counts although the configuration ties it, as `transformers`
    has it: tied are the two where they are equal."""
    names = hub_name("embed.weight"), hub_name("head.weight")
    if not config.tied or any(name not in stored for name in names):
        return config
    return replace(config, tied=torch.equal(*(stored[name].get_tensor(name) for name in names)))


def check_weights(folder: Path, config: ModelConfig, stored: dict[str, safe_open]) -> torch.dtype:
    """Each tensor of the model must be there in its shape, and none that the model has no place
    for; -> the dtype that holds them all without rounding."""
    with torch.device("meta"):
        model = Transformer(config)
    shapes = {name: list(tensor.shape) for name, tensor in hub_tensors(model).items()}
    if missing := [name for name in shapes if name not in stored]:
        raise InputError(f"{folder} lacks weights that its config.json asks for: {_some(missing)}")
    # Old checkpoints hold RoPE's frequencies, some a tied head's copy: both are known anyway.
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
    """Into the model, in its own dtype and on its own device, one tensor at a time."""
    for name, tensor in hub_tensors(model).items():
        tensor.copy_(stored[name].get_tensor(name))


def write_weights(model: Transformer, folder: Path, shard_bytes: int) -> None:
    """One file, or as many as keep each under `shard_bytes`. A tied head is not stored."""
    tensors = {name: tensor.contiguous() for name, tensor in hub_tensors(model).items()}
    shards = split_torch_state_dict_into_shards(tensors, max_shard_size=shard_bytes)
    for file, names in shards.filename_to_tensors.items():
        save_file({name: tensors[name] for name in names}, folder / file, {"format": "pt"})
    if shards.is_sharded:
        index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
