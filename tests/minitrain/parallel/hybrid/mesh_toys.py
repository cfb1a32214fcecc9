"""A small dense model and one of experts, unequal microbatches, and what one process gets of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from minitrain.data.loader import Batch
from minitrain.model.config import ModelConfig
from minitrain.model.experts.moe import set_step
from minitrain.model.transformer import build
from minitrain.optimizers.groups import clip_by_global_norm
from minitrain.training.loss import token_weighted_loss

VOCABULARY = 11
CLIP, RATE = 0.5, 0.1
DENSE = ModelConfig(
    VOCABULARY, 8, layers=2, heads=24, kv_heads=4, ffn_size=24, head_size=2, qkv_bias=True
)
MIXTURE = replace(
    DENSE, experts=24, experts_per_token=2, expert_ffn_size=4, shared_experts=1,
    sequence_balance=0.1, z_loss=0.01, bias_rate=0.01,
)  # fmt: skip


def batches(rows: int, length: int) -> list[Batch]:
    """Two microbatches with unequal numbers of targets, rows of several documents."""
    generator = torch.Generator().manual_seed(5)
    made = []
    for padding in (length // 4, 0):
        tokens, targets = torch.randint(VOCABULARY, (2, rows, length), generator=generator)
        targets[::2, length - padding :] = -100
        second = 1 + torch.arange(rows)[:, None] % (length - 1)  # where a row's second one begins
        place = torch.arange(length)
        documents = (place >= second).long()
        made.append(Batch(tokens, targets, documents, place - second * documents))
    return made


@dataclass
class Whole:
    """The outcome of one process."""

    loss: float
    norm: float
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]  # after a step of clipped gradient descent


@cache
def one_process(config: ModelConfig, shape: tuple[int, int]) -> Whole:
    model, parts = build(config, dtype=torch.float64), batches(*shape)
    tokens = sum(part.tokens_counted for part in parts)
    set_step(model, sum(part.targets.numel() for part in parts))
    shares = []
    for part in parts:
        logits = model(part.tokens, part.documents, part.positions)
        shares.append(token_weighted_loss(logits, part.targets, tokens))
        shares[-1].backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    norm = clip_by_global_norm(list(model.parameters()), CLIP)
    with torch.no_grad():
        weights = {name: p - RATE * p.grad for name, p in model.named_parameters()}
    return Whole(sum(share.item() for share in shares), norm.item(), gradients, weights)
