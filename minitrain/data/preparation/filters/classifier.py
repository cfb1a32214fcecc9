"""A linear classifier over hashed words and word pairs, which finds texts like those you want.

    p(label | text) = softmax(b + mean over the text's n-grams of W[hash(n-gram) mod buckets])

This is fastText without its hidden layer (Joulin et al. 2016, 1607.01759). GPT-3 trained one on
good texts against raw crawl and kept a document if pareto(9) > 1 - p, so that some of everything
stays (Brown et al. 2020, 2005.14165, appendix A); `FineWeb-Edu` keeps documents above a threshold.
It is only as good as its two training sets, and learns any difference between them. Do not apply
it to its training texts: it has memorized their labels.
Shapes: N documents  C labels; W is (buckets, C). Trained in seconds on one core.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from minitrain.data.preparation.deduplication.words import shingle_hashes
from minitrain.data.preparation.filters.rules import Rule
from minitrain.errors import InputError, unknown_name

NONE = 0  # the bucket of a text without words, which stays zero


@dataclass(frozen=True)
class Classifier:
    """Labels with their weights (buckets, C) and biases (C,), float32."""

    labels: tuple[str, ...]
    weights: Tensor
    biases: Tensor

    def probabilities(self, texts: Sequence[str]) -> Tensor:
        """(N, C); each row sums to 1."""
        return _logits(self.weights, self.biases, *_features(texts, len(self.weights))).softmax(-1)

    def rule(self, label: str, least: float = 0.5) -> Rule:
        """A rule that drops texts whose probability of `label` is under `least`."""
        if label not in self.labels:
            raise unknown_name("label", label, self.labels)
        fails = partial(unlike_the_wanted, classifier=self, label=label, least=least)
        return Rule(fails, f"a classifier of {', '.join(self.labels)}")

    def save(self, file: str | os.PathLike) -> Path:
        """Writes one safetensors file, with the labels in its header."""
        tensors = {"weights": self.weights.contiguous(), "biases": self.biases.contiguous()}
        save_file(tensors, file, {"labels": json.dumps(self.labels)})
        return Path(file)

    @staticmethod
    def load(file: str | os.PathLike) -> Classifier:
        try:
            with safe_open(file, "pt") as read:
                labels = tuple(json.loads(read.metadata()["labels"]))
                return Classifier(labels, read.get_tensor("weights"), read.get_tensor("biases"))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{file} is no classifier ({error}): save one with .save()") from error


def unlike_the_wanted(text: str, classifier: Classifier, label: str, least: float) -> bool:
    """True if the label's probability is under `least`."""
    return bool(classifier.probabilities([text])[0, classifier.labels.index(label)] < least)


def train_classifier(
    texts: Sequence[str],
    labels: Sequence[str],
    buckets: int = 1 << 16,
    epochs: int = 10,
    batch: int = 64,
    lr: float = 0.1,
    seed: int = 0,
) -> Classifier:
    """Trains with cross-entropy and Adam; labels are weighted equally, whatever their size."""
    names = tuple(sorted(set(labels)))
    if len(texts) != len(labels) or len(names) < 2:
        raise InputError(
            f"{len(texts)} texts and {len(labels)} labels of {len(names)} kinds: give a label for "
            "each text, of two kinds or more"
        )
    wanted = torch.tensor([names.index(label) for label in labels])
    weights = torch.zeros(buckets, len(names), requires_grad=True)
    biases = torch.zeros(len(names), requires_grad=True)
    balance = len(wanted) / (len(names) * torch.bincount(wanted).float())
    optimizer = torch.optim.Adam([weights, biases], lr=lr)
    generator = torch.Generator().manual_seed(seed)
    prepared = [_features([text], buckets)[0] for text in texts]
    for _ in range(epochs):
        for rows in torch.randperm(len(texts), generator=generator).split(batch):
            own = [prepared[row] for row in rows.tolist()]
            starts = torch.tensor([0, *map(len, own)]).cumsum(0)[:-1]
            logits = _logits(weights, biases, torch.cat(own), starts)
            loss = F.cross_entropy(logits, wanted[rows], balance)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Classifier(names, weights.detach(), biases.detach())


def train_and_test(
    heaps: Mapping[str, Sequence[str]], part: float = 0.1, seed: int = 0
) -> tuple[Classifier, dict[str, float]]:
    """A classifier with the heaps' names as labels, and its accuracy on each heap, measured on a
    held-out part drawn by `seed`."""
    kept, tested = {}, {}
    for name, texts in heaps.items():
        texts = list(dict.fromkeys(texts))  # a repeated text could land on both sides
        random.Random(seed).shuffle(texts)
        count = int(part * len(texts))
        if count < 1:
            raise InputError(
                f"{len(texts)} different texts of {name} leave none to test with: give "
                f"{ceil(1 / part)} or more"
            )
        tested[name], kept[name] = texts[:count], texts[count:]
    labels = [name for name, texts in kept.items() for _ in texts]
    trained = train_classifier([t for texts in kept.values() for t in texts], labels, seed=seed)
    right = {}
    for name, texts in tested.items():
        likeliest = trained.probabilities(texts).argmax(1)
        right[name] = (likeliest == trained.labels.index(name)).float().mean().item()
    return trained, right


def _logits(weights: Tensor, biases: Tensor, buckets: Tensor, starts: Tensor) -> Tensor:
    bags = F.embedding_bag(buckets, weights, starts, mode="mean", padding_idx=NONE)
    return bags + biases  # (N, C)


def _features(texts: Sequence[str], buckets: int) -> tuple[Tensor, Tensor]:
    """The buckets of all words and pairs, and (N,) offsets of each text's first."""
    kinds = [shingle_hashes(texts, width) for width in (1, 2)]
    own = [
        np.concatenate([hashes[bounds[i] : bounds[i + 1]] for hashes, bounds in kinds])
        for i in range(len(texts))
    ]
    folded = [
        (hashes % np.uint64(buckets - 1)).astype(np.int64) + 1 if len(hashes) else np.array([NONE])
        for hashes in own
    ]
    starts = np.cumsum([0, *map(len, folded)])[:-1]
    return torch.from_numpy(np.concatenate(folded)), torch.from_numpy(starts)
