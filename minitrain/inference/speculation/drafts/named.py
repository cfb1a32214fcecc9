"""Drafts by name: all that need no second model, and are made of the target.

    ngram                 what followed where the text stood before: nothing is made or computed
    int8, int4-g32, …     the target in fewer bits (quantization/formats/names.py has all)
    layers-4              its first 4 blocks
    medusa, eagle         heads on its hidden vectors, trained on its own text: about a minute
                          at 15M parameters

`measured_length` is for all: how long a draft should be, from what this one and the target's passes
cost here. A tree's nodes count as if they stood in a row, which is too hopeful of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minitrain.inference.speculation.drafts.eagle import Eagle, EagleLayer
from minitrain.inference.speculation.drafts.lessons import (
    Course,
    Lessons,
    frequent,
    own_text,
    train,
)
from minitrain.inference.speculation.drafts.medusa import Medusa, MedusaHeads
from minitrain.inference.speculation.drafts.model import DraftModel
from minitrain.inference.speculation.drafts.ngram import NGram
from minitrain.inference.speculation.drafts.self_draft import first_layers, quantized_draft
from minitrain.inference.speculation.length import AdaptiveLength
from minitrain.inference.speculation.measured import measure_costs
from minitrain.inference.speculation.proposer import Proposer
from minitrain.model.transformer import Transformer
from minitrain.quantization.formats.names import FLOATS, GRIDS, PATTERN

HEADS = ("medusa", "eagle")
LAYERS = re.compile(r"layers-(\d+)")
TREE = 12  # nodes that Medusa's heads guess, at most
WRITTEN = 24  # tokens that costs are measured on
TOGETHER = 64  # texts that are written in one batch

COURSE = Course(steps=150, texts=8, lr=4e-3)


@dataclass(frozen=True)
class Teaching:
    """How much of its own text the target writes for heads, and how long they learn from it."""

    texts: int = 192
    length: int = 128
    shortlist: int = 1500  # tokens that a head guesses at all, the most frequent ones
    course: Course = COURSE


def is_named(name: str) -> bool:
    grid = PATTERN.fullmatch(name)
    form = name in FLOATS or (grid is not None and grid["grid"] in GRIDS)
    return form or name in ("ngram", *HEADS) or LAYERS.fullmatch(name) is not None


def named_draft(name: str, target: Transformer, begin: Sequence[int], rows: int) -> Proposer:
    """For `rows` requests at once; `begin`: the tokens that the target's own texts begin with, for
    heads. InputError for a name that is none of these, or more layers than the target has."""
    if name == "ngram":
        return NGram()
    if name in HEADS:
        return _head(name, target, begin, rows, Teaching())
    layers = LAYERS.fullmatch(name)
    own = first_layers(target, int(layers[1])) if layers else quantized_draft(target, name)
    return DraftModel(own, rows)


def _head(
    name: str, target: Transformer, begin: Sequence[int], rows: int, teaching: Teaching
) -> Proposer:
    length = min(teaching.length, target.config.max_length)
    lessons = _written(target, begin, teaching.texts, length)
    shortlist = frequent(lessons.tokens, teaching.shortlist)
    if name == "medusa":
        heads = MedusaHeads(target, shortlist)
        train(heads, lessons, teaching.course)
        return Medusa(heads, lessons, TREE)
    layer = EagleLayer(target, shortlist)
    train(layer, lessons, teaching.course)
    return Eagle(layer, rows)


def measured_length(
    target: Transformer, proposer: Proposer, begin: Sequence[int]
) -> AdaptiveLength:
    text = _written(target, begin, 1, WRITTEN).tokens[0].tolist()
    most = TREE if isinstance(proposer, Medusa) else 6
    return AdaptiveLength(measure_costs(target, proposer, text, most))


def _written(target: Transformer, begin: Sequence[int], texts: int, length: int) -> Lessons:
    """A few at a time, whose cache is small."""
    chance, written = torch.Generator().manual_seed(0), []
    for first in range(0, texts, TOGETHER):
        count = min(TOGETHER, texts - first)
        written.append(own_text(target, begin or (0,), count, length, generator=chance))
    return Lessons(*map(torch.cat, zip(*written)))
