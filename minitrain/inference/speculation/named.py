"""Drafts by name: all those that need no second model, but are made from the target.

    ngram                 continuations of earlier occurrences in the text: no model at all
    int8, int4-g32, …     the target with fewer bits (quantization/formats/names.py has all)
    layers-4              its first 4 blocks
    medusa, eagle         heads on its hidden vectors, trained on its own text: about a minute
                          at 15M parameters, then cached for the next start

Training uses fixed seeds, so a head depends on the target's weights, the beginning of its texts and
the training length, which name the file. An unreadable file is replaced.

`measured_length` works for all: the best draft length from the measured costs of drafts and target
passes. A tree's nodes count as if they were a chain, which is optimistic.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from tqdm import tqdm

from minitrain.inference.speculation.draft_model import DraftModel, first_layers, quantized_draft
from minitrain.inference.speculation.eagle import Eagle, EagleLayer
from minitrain.inference.speculation.length import AdaptiveLength, measure_costs
from minitrain.inference.speculation.lessons import (
    Course,
    Lessons,
    frequent,
    own_text,
    train,
)
from minitrain.inference.speculation.medusa import Branch, Medusa, MedusaHeads, best_tree
from minitrain.inference.speculation.ngram import NGram
from minitrain.inference.speculation.proposer import Proposer
from minitrain.model.transformer import Transformer
from minitrain.paths import cache_dir, write_bytes_atomically
from minitrain.quantization.formats.names import FLOATS, GRIDS, PATTERN

HEADS = {"medusa": MedusaHeads, "eagle": EagleLayer}
TOGETHER = 64  # texts generated in one batch
COURSE = Course(steps=150, texts=8, lr=4e-3)
LAYERS = re.compile(r"layers-(\d+)")
WRITTEN = 24  # tokens over which costs are measured


@dataclass(frozen=True)
class Teaching:
    """The amount of the target's own text to train heads on, and their training length."""

    texts: int = 192
    length: int = 128
    shortlist: int = 1500  # the most frequent tokens, which a head can draft
    nodes: int = 12  # of Medusa's tree, at most
    course: Course = COURSE


Head = tuple[MedusaHeads | EagleLayer, list[Branch]]  # with Medusa's tree: a chain needs none


def trained(name: str, target: Transformer, begin: Sequence[int], teaching: Teaching) -> Head:
    """The head called `name` of HEADS, for texts of the target's that begin with `begin`."""
    digest = _fingerprint(target, begin, teaching)
    file = cache_dir() / "drafts" / f"{name}-{digest}.safetensors"
    kept = _read(file, name, target)
    if kept is None:
        head, branches = kept = _train(name, target, begin, teaching)
        tensors = {key: held.contiguous() for key, held in head.state_dict().items()}
        write_bytes_atomically(file, save(tensors, {"branches": json.dumps(branches)}))
    return kept


def written(
    target: Transformer, begin: Sequence[int], texts: int, length: int, progress: bool = False
) -> Lessons:
    """The target's own texts; a few at a time, to keep the cache small."""
    chance, parts = torch.Generator().manual_seed(0), []
    bar = tqdm(range(0, texts, TOGETHER), "writing the model's own text", disable=not progress)
    for first in bar:
        count = min(TOGETHER, texts - first)
        parts.append(own_text(target, begin or (0,), count, length, generator=chance))
    return Lessons(*map(torch.cat, zip(*parts)))


def _train(name: str, target: Transformer, begin: Sequence[int], teaching: Teaching) -> Head:
    length = min(teaching.length, target.config.max_length)
    lessons = written(target, begin, teaching.texts, length, progress=True)
    head = HEADS[name](target, frequent(lessons.tokens, teaching.shortlist))
    train(head, lessons, teaching.course, f"training the {name} head")
    if isinstance(head, EagleLayer):
        return head, []
    return head, best_tree(head.accuracy(lessons), teaching.nodes)


def _read(file: Path, name: str, target: Transformer) -> Head | None:
    """Reads cached heads; None if there are none, or none that fit this code."""
    try:
        with safe_open(file, "pt") as opened:
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
            branches = json.loads(opened.metadata()["branches"])
        head = HEADS[name](target, tensors["shortlist"].to(target.embed.weight.device))
        head.load_state_dict(tensors)
    except (OSError, SafetensorError, KeyError, RuntimeError):
        return None
    return head, [tuple(branch) for branch in branches]


def _fingerprint(target: Transformer, begin: Sequence[int], teaching: Teaching) -> str:
    digest = hashlib.sha256(repr((target.config, list(begin), teaching)).encode())
    for key, held in target.state_dict().items():
        digest.update(key.encode())
        digest.update(held.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def is_named(name: str) -> bool:
    grid = PATTERN.fullmatch(name)
    form = name in FLOATS or (grid is not None and grid["grid"] in GRIDS)
    return form or name in ("ngram", *HEADS) or LAYERS.fullmatch(name) is not None


def named_draft(name: str, target: Transformer, begin: Sequence[int], rows: int) -> Proposer:
    """A proposer for `rows` requests at once; `begin`: the beginning of the target's texts, for
    heads. InputError for an unknown name, or more layers than the target has."""
    if name == "ngram":
        return NGram()
    if name in HEADS:
        head, branches = trained(name, target, begin, Teaching())
        return Eagle(head, rows) if isinstance(head, EagleLayer) else Medusa(head, branches)
    layers = LAYERS.fullmatch(name)
    own = first_layers(target, int(layers[1])) if layers else quantized_draft(target, name)
    return DraftModel(own, rows)


def measured_length(
    target: Transformer, proposer: Proposer, begin: Sequence[int]
) -> AdaptiveLength:
    text = written(target, begin, 1, WRITTEN).tokens[0].tolist()
    most = len(proposer.branches) if isinstance(proposer, Medusa) else 6
    return AdaptiveLength(measure_costs(target, proposer, text, most))
