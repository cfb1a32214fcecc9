"""A model and its tokenizer, as whoever talks with it needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from minitrain.apps.models import open_model
from minitrain.model.hub.text import open_tokenizer
from minitrain.model.transformer import Transformer


@dataclass(frozen=True)
class Speaker:
    """`begin` is what a text of its own begins with; after one of `ends` it says no more."""

    model: Transformer
    tokenizer: Tokenizer
    begin: tuple[int, ...]
    ends: tuple[int, ...]
    files: Mapping[str, bytes]  # the tokenizer's, by name


def open_speaker(name: str, device: torch.device) -> Speaker:
    """Opens any model that the other commands open; on a CPU in float32, which is fast there."""
    model, text = open_model(name, device, torch.float32 if device.type == "cpu" else None)
    begin = text.bos_id if text.bos_id is not None else next(iter(text.eos_ids), None)
    return Speaker(
        model,
        open_tokenizer(text.tokenizer),
        () if begin is None else (begin,),
        text.eos_ids,
        text.tokenizer,
    )
