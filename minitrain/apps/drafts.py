"""`--draft`: who guesses tokens ahead for a server's model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minitrain.apps.kinds import Kind, named
from minitrain.errors import InputError

if TYPE_CHECKING:
    from minitrain.inference.speculation.proposer import Proposer
    from minitrain.inference.speculation.serving import EngineDrafts
    from minitrain.model.transformer import Transformer

DRAFT = Kind("DRAFT", "ngram, int8, layers-4, medusa, eagle or a model", lambda t: str(named(t)))
DRAFT_HELP = (
    "guess tokens ahead by ngram, int8 or another format, layers-N, medusa or eagle (taught for a "
    "minute, the first time), or a model of the same tokenizer"
)


def open_drafts(
    name: str,
    target: Transformer,
    begin: Sequence[int],
    rows: int,
    length: int | None = None,
    drawn: bool = False,
) -> EngineDrafts:
    """For an engine that serves `target`; `length` None: adapted to what is kept, and to what
    passes were measured to cost."""
    from minitrain.inference.speculation.named import (
        is_named,
        measured_length,
        named_draft,
    )
    from minitrain.inference.speculation.serving import EngineDrafts

    target.requires_grad_(False)
    proposer: Proposer
    if is_named(name):
        proposer = named_draft(name, target, begin, rows)
    else:
        proposer = model_draft(name, target, rows)
    if length is None:
        return EngineDrafts(proposer, measured_length(target, proposer, begin), drawn)
    return EngineDrafts(proposer, length, drawn)


def model_draft(name: str, target: Transformer, rows: int) -> Proposer:
    from minitrain.apps.models import open_model
    from minitrain.inference.speculation.draft_model import DraftModel

    weight = target.embed.weight
    model, _ = open_model(name, weight.device, weight.dtype)
    if model.config.vocab_size != target.config.vocab_size:
        raise InputError(
            f"--draft {name} knows {model.config.vocab_size:,} tokens and the model "
            f"{target.config.vocab_size:,}: give a draft of the same tokenizer, or ngram, int8, "
            "medusa or eagle, which are made of the model itself"
        )
    longest = min(model.config.max_length, target.config.max_length)
    return DraftModel(model.requires_grad_(False), rows, longest)
