"""A tiny model and unequal microbatches, for the tests of pipelines."""

from __future__ import annotations

from functools import cache

import torch

from minitrain.data.loader import Batch
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.pipeline.plain import share_of_loss

VOCABULARY, LAYERS = 11, 5


def tiny(tied: bool = False):
    config = ModelConfig(
        VOCABULARY, 8, layers=LAYERS, heads=2, kv_heads=1, ffn_size=12, tied=tied, qkv_bias=True
    )
    return build(config, dtype=torch.float64)


def microbatches(m: int) -> list[Batch]:
    """Rows of two documents; unequal in length, rows and tokens that count."""
    generator = torch.Generator().manual_seed(m)
    made = []
    for i in range(m):
        rows, length = 1 + i % 2, 4 + i % 3
        tokens, targets = torch.randint(VOCABULARY, (2, rows, length), generator=generator)
        targets[:, i % length :] = -100 if i % 3 == 1 else targets[:, i % length :]
        documents = (torch.arange(length) >= 2).long().expand(rows, length)
        positions = (1 + i % 2) * torch.arange(length).expand(rows, length)
        made.append(Batch(tokens, targets, documents, positions))
    return made


def total_tokens(batches: list[Batch]) -> int:
    return sum(batch.tokens_counted for batch in batches)


@cache  # asked for again by each schedule and number of ranks; nobody changes it
def one_process(tied: bool, m: int):
    model, batches = tiny(tied), microbatches(m)
    loss, total = share_of_loss(total_tokens(batches)), 0.0
    for batch in batches:
        share = loss(model(batch.tokens, batch.documents, batch.positions), batch)
        share.backward()
        total += share.item()
    return total, {name: p.grad for name, p in model.named_parameters()}
