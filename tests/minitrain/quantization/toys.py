"""A small model, trained for a second or two, and the texts that it is calibrated and judged on."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from itertools import chain

import torch

from minitrain.data.corpus import make_corpus
from minitrain.data.loader import Batch, Loader
from minitrain.data.packing import Packed, pack_stream
from minitrain.data.tokenizer import train_tokenizer
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer, build
from minitrain.optimizers.adamw import AdamW
from minitrain.training.loss import token_weighted_loss

CONFIG = ModelConfig(320, 48, layers=2, heads=4, kv_heads=2, ffn_size=96)
LENGTH = 48


@lru_cache
def texts() -> tuple[Packed, list[Batch], list[Batch]]:
    """To train on, to calibrate on, to judge by."""
    training, held_out = make_corpus(250_000, 0).documents, make_corpus(25_000, 7).documents
    tokenizer = train_tokenizer(training[:200], CONFIG.vocab_size)
    end = tokenizer.end_token
    rows = pack_stream(tokenizer.encode_batch(training), LENGTH, end)
    judged = pack_stream(tokenizer.encode_batch(held_out), LENGTH, end)
    calibrated = list(Loader(rows[:64], 16, shuffle=False))
    return rows, calibrated, list(Loader(judged[:96], 96, shuffle=False))


def calibration() -> list[Batch]:
    return texts()[1]


def held_out() -> list[Batch]:
    return texts()[2]


def train(model: Transformer, steps: int, lr: float) -> Transformer:
    optimizer = AdamW(model.parameters(), lr=lr)
    loader = Loader(texts()[0], 16)
    endless = chain.from_iterable(loader for _ in range(steps))
    for step, batch in zip(range(steps), endless):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - step / steps)
        logits = model(batch.tokens, batch.documents, batch.positions)
        loss = token_weighted_loss(logits, batch.targets, batch.tokens_counted)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


@lru_cache
def _trained() -> Transformer:
    return train(build(CONFIG, seed=0), steps=90, lr=1e-2)


def trained() -> Transformer:
    """A copy: tests change it in place."""
    return deepcopy(_trained())


def fresh(**changes) -> Transformer:
    """Not trained; norms and biases that are not all alike, so that moving them shows."""
    model = build(
        replace(ModelConfig(64, 48, 2, heads=4, kv_heads=4, ffn_size=96), **changes), seed=1
    )
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def tokens(batch: int = 4, length: int = 24, vocab: int = 64, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))
