"""Drafts by name: all that need no second model, and are made of the target.

    ngram                 what followed where the text stood before: nothing is made or computed
    int8, int4-g32, …     the target in fewer bits (quantization/formats/names.py has all)
    layers-4              its first 4 blocks
    medusa, eagle         heads on its hidden vectors, trained on its own text: about a minute
                          at 15M parameters, and kept (taught.py)

`measured_length` is for all: how long a draft should be, from what this one and the target's passes
cost here. A tree's nodes count as if they stood in a row, which is too hopeful of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from minitrain.inference.speculation.drafts.eagle import Eagle, EagleLayer
from minitrain.inference.speculation.drafts.medusa import Medusa
from minitrain.inference.speculation.drafts.model import DraftModel
from minitrain.inference.speculation.drafts.ngram import NGram
from minitrain.inference.speculation.drafts.self_draft import first_layers, quantized_draft
from minitrain.inference.speculation.drafts.taught import HEADS, Teaching, taught, written
from minitrain.inference.speculation.length import AdaptiveLength
from minitrain.inference.speculation.measured import measure_costs
from minitrain.inference.speculation.proposer import Proposer
from minitrain.model.transformer import Transformer
from minitrain.quantization.formats.names import FLOATS, GRIDS, PATTERN

LAYERS = re.compile(r"layers-(\d+)")
WRITTEN = 24  # tokens that costs are measured on


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
        found = taught(name, target, begin, Teaching())
        if isinstance(found.head, EagleLayer):
            return Eagle(found.head, rows)
        return Medusa(found.head, found.branches)
    layers = LAYERS.fullmatch(name)
    own = first_layers(target, int(layers[1])) if layers else quantized_draft(target, name)
    return DraftModel(own, rows)


def measured_length(
    target: Transformer, proposer: Proposer, begin: Sequence[int]
) -> AdaptiveLength:
    text = written(target, begin, 1, WRITTEN).tokens[0].tolist()
    most = len(proposer.branches) if isinstance(proposer, Medusa) else 6
    return AdaptiveLength(measure_costs(target, proposer, text, most))
