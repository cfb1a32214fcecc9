"""A whole model under context parallelism: each attention layer reads beyond its rank's tokens."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minitrain.errors import unknown_name
from minitrain.model.attention.mask import Mask
from minitrain.model.config import ModelConfig
from minitrain.model.rope import Rotation, document_positions, rotation
from minitrain.model.transformer import Transformer
from minitrain.parallel.context.gather import (
    gather_attention,
    gather_sequence,
    ulysses_attention,
)
from minitrain.parallel.context.ring import ring_attention
from minitrain.parallel.context.split import chunks_of, split_tensor
from minitrain.ranks.group import Group


def context_parallel(
    model: Transformer, group: Group, order: str = "zigzag", kind: str = "ring"
) -> Transformer:
    """The model for this rank's part of a batch (`split_sequence`); call it on every rank.

    Each rank's gradients are those of its own tokens' loss: their sum over `group` is the full one.
    """
    if kind not in KINDS:
        raise unknown_name("kind of context parallelism", kind, KINDS)
    chunks_of(group.rank, group.size, order)  # rejects an unknown order now
    for block in model.blocks:
        block.attention.kernel = partial(KINDS[kind], group, order)
    model.look_around = partial(look_around_in_part, model.config, group, order)
    return model


def look_around_in_part(
    config: ModelConfig,
    group: Group,
    order: str,
    x: Tensor,
    documents: Tensor | None = None,
    positions: Tensor | None = None,
) -> tuple[Rotation, Mask]:
    """As `transformer.look_around`, for this rank's x (B, T/N, D): rotates its own tokens, uses
    the whole sequence's mask. Documents are gathered once, for all layers."""
    if documents is not None:
        documents = gather_sequence(group, order, documents)  # (B, T)
    if positions is None:
        places = torch.arange(x.shape[1] * group.size, device=x.device)
        whole = places[None] if documents is None else document_positions(documents)
        positions = split_tensor(whole, group.rank, group.size, order)  # (1 or B, T/N)
    return rotation(config, positions, x.dtype), Mask(0, config.window, documents, documents)


KINDS = {"gather": gather_attention, "ring": ring_attention, "ulysses": ulysses_attention}
