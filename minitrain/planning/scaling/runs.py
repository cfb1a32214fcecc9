"""Small runs for a scaling law: a grid of sizes and tokens, each trained from scratch, in a CSV.

The text is the course's own chain of words, so that the law's true E is known exactly. Every (N, D)
is a separate run whose cosine schedule ends at D: the loss half-way through a longer run differs
from a shorter run's (Hoffmann et al. 2022, §3). No document repeats.

    texts = make_texts(max(TOKENS))
    runs = [train_one(config, texts, count) for config in SIZES for count in TOKENS]
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from minitrain.data.corpus import Corpus, make_corpus
from minitrain.data.loader import Loader
from minitrain.data.packing import Packed, pack
from minitrain.data.tokenizer import Tokenizer, train_tokenizer
from minitrain.errors import InputError
from minitrain.measure.clock import threads
from minitrain.measure.parameters import parameter_count
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.training.loop import TrainConfig, evaluate, train

VOCABULARY = 512
BYTES_PER_TOKEN = 5.0  # of the corpus with 512 tokens, rounded up
TOKENIZER_BYTES = 1_000_000


@dataclass(frozen=True)
class ScalingRun:
    """One row: the run, its held-out loss, and the entropy floor of that text."""

    parameters: int
    tokens: int
    loss: float
    floor: float
    seed: int
    device: str


@dataclass(frozen=True)
class ScalingRecipe:
    """Settings shared by all runs of a grid."""

    length: int = 128
    batch: int = 4
    lr_times_width: float = 0.7  # Adam's best rate falls with the width: Yang et al. 2022, μP
    device: str = "cpu"
    held_out_bytes: int = 200_000
    domain: str = "chain"  # learned smoothly; the stories have a step, which no power law fits


@dataclass(frozen=True)
class Texts:
    """Training rows, held-out rows, and the entropy of the latter in nats per token."""

    training: Packed
    held_out: Packed
    floor: float


def shape(width: int, layers: int) -> ModelConfig:
    """A member of the fitted family: head size 16, MLP of 3 times the width."""
    heads = max(1, width // 16)
    return ModelConfig(VOCABULARY, width, layers, heads, heads, ffn_size=3 * width)


# The grid of data/scaling_runs.csv: 9 to 226 thousand parameters, an eighth to 2 M tokens.
SIZES = tuple(shape(*s) for s in ((8, 1), (12, 1), (16, 1), (24, 1), (32, 2), (48, 3), (64, 3)))
TOKENS = (125_000, 250_000, 500_000, 1_000_000, 2_000_000)


def make_texts(tokens: int, seed: int = 0, recipe: ScalingRecipe = ScalingRecipe()) -> Texts:
    """Enough text for `tokens` without repetition; the held-out part has its own seed."""
    size = int(tokens * BYTES_PER_TOKEN)
    training = make_corpus(size, seed=2 * seed, domain=recipe.domain)
    held_out = make_corpus(recipe.held_out_bytes, seed=2 * seed + 1, domain=recipe.domain)
    sample = make_corpus(TOKENIZER_BYTES, seed=2 * seed, domain=recipe.domain)
    tokenizer = train_tokenizer(sample.documents, VOCABULARY)  # the same for any number of tokens
    rows = (_packed(corpus, tokenizer, recipe.length) for corpus in (training, held_out))
    return Texts(*rows, held_out.entropy_per_token(tokenizer))


def _packed(corpus: Corpus, tokenizer: Tokenizer, length: int) -> Packed:
    documents = tokenizer.encode_batch(corpus.documents)
    return pack(documents, length, tokenizer.end_token)


def train_one(
    config: ModelConfig,
    texts: Texts,
    tokens: int,
    seed: int = 0,
    recipe: ScalingRecipe = ScalingRecipe(),
) -> ScalingRun:
    """One run over about `tokens` tokens (whole steps, padding not counted)."""
    device = torch.device(recipe.device)
    model = build(config, device=device, seed=seed)
    loader = Loader(texts.training, recipe.batch, seed=seed)
    tokens_per_step = recipe.batch * recipe.length * texts.training.fill
    steps = max(1, round(tokens / tokens_per_step))
    rate = recipe.lr_times_width / config.hidden_size
    with threads(1):  # a second one would only wait in such small models
        result = train(model, loader, TrainConfig(steps=steps, lr=rate))
    held_out = Loader(texts.held_out, 32, shuffle=False)
    return ScalingRun(
        parameters=parameter_count(config),
        tokens=result.state.tokens,
        loss=round(evaluate(model, held_out), 5),
        floor=round(texts.floor, 5),
        seed=seed,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    )


def read_runs(file: str | Path) -> list[ScalingRun]:
    """The rows of a recorded CSV."""
    names = [field.name for field in fields(ScalingRun)]
    with Path(file).open(newline="") as lines:
        rows = csv.DictReader(lines)
        if rows.fieldnames != names:
            raise InputError(f"{file} has the columns {rows.fieldnames}: it must have {names}")
        kinds = (int, int, float, float, int, str)
        return [ScalingRun(*(kind(row[name]) for kind, name in zip(kinds, names))) for row in rows]
