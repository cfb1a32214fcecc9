"""A model and its tokenizer, as whoever talks with it needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from minitrain.apps.models import open_model
from minitrain.errors import InputError
from minitrain.model.transformer import Transformer


@dataclass(frozen=True)
class Speaker:
    """`begin` is what a text of its own begins with; after one of `ends` it says no more."""

    model: Transformer
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    begin: tuple[int, ...]
    ends: tuple[int, ...]
    files: Mapping[str, bytes]  # the tokenizer's, by name


def open_speaker(name: str, device: torch.device) -> Speaker:
    """Whatever the other commands open; on a CPU in float32, at which it is quick."""
    model, text = open_model(name, device, torch.float32 if device.type == "cpu" else None)
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
        text.tokenizer,
    )
