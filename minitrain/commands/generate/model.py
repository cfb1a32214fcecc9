"""A model and its tokenizer, from whatever holds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from minitrain.commands.finetune.model import find_model
from minitrain.data.assets.catalogue import ASSETS
from minitrain.data.assets.fetch import fetch
from minitrain.errors import InputError, unknown_name
from minitrain.model.hub.config import read_json
from minitrain.model.hub.llama2c import load_llama2c
from minitrain.model.hub.load import load_pretrained
from minitrain.model.hub.text import TextFiles
from minitrain.model.transformer import Transformer
from minitrain.quantization.folder import OURS, load_quantized

LLAMA2C = "model.bin"
MODELS = [
    name
    for name, asset in ASSETS.items()
    if any(part.path.endswith((LLAMA2C, ".gguf")) for part in asset.parts)
]


@dataclass(frozen=True)
class Speaker:
    """`begin` is what a text of its own begins with; after one of `ends` it says no more."""

    model: Transformer
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    begin: tuple[int, ...]
    ends: tuple[int, ...]


def open_speaker(name: str, device: torch.device) -> Speaker:
    """A folder or file that is here, an asset, or a name on the hub."""
    place = Path(name)
    if not place.exists() and name in ASSETS:
        if name not in MODELS:
            raise unknown_name("model", name, MODELS)
        place = fetch(name)
    else:
        place = find_model(name)
    if place.name == LLAMA2C or (place / LLAMA2C).is_file():
        model, tokenizer = load_llama2c(place)
        ends = (tokenizer.bos_id, tokenizer.eos_id)
        return Speaker(
            model.to(device), tokenizer.encode, tokenizer.decode, (tokenizer.bos_id,), ends
        )
    config = place / "config.json"
    if config.is_file() and read_json(config).get("model_type") == OURS:
        return speaker(*load_quantized(place, device))
    dtype = torch.float32 if device.type == "cpu" else None  # what a CPU is quick at
    return speaker(*load_pretrained(place, device, dtype))


def speaker(model: Transformer, text: TextFiles) -> Speaker:
    from tokenizers import Tokenizer

    if "tokenizer.json" not in text.tokenizer:
        raise InputError(
            "the model has no tokenizer.json, and text cannot become its tokens: put its own there"
        )
    tokenizer = Tokenizer.from_str(text.tokenizer["tokenizer.json"].decode())
    begin = text.bos_id if text.bos_id is not None else next(iter(text.eos_ids), None)
    return Speaker(
        model,
        lambda text: tokenizer.encode(text).ids,
        lambda tokens: tokenizer.decode(tokens),
        () if begin is None else (begin,),
        text.eos_ids,
    )
