"""Acceptance and costs of target and proposer, measured: what the formula needs to say who wins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.formula import acceptance
from minitrain.inference.speculation.length import Costs
from minitrain.inference.speculation.proposer import Asked, Proposer, shaped
from minitrain.measure.clock import Timing, compare, seconds_of
from minitrain.model.transformer import Transformer

PLAIN = SamplingParameters(temperature=1.0)


@torch.no_grad()
def measure_acceptance(
    target: Transformer,
    draft: Transformer,
    texts: Tensor,
    parameters: SamplingParameters = PLAIN,
) -> Tensor:
    """texts (B, T) int64 -> (B, T): after each token, how probably a draft of the next is kept.

    Σ min(p, q); where greedy, 1 or 0: whether both find the same token the likeliest.
    """
    rows = [
        [_probabilities(model(text[None])[0], parameters) for model in (target, draft)]
        for text in texts
    ]
    return torch.stack([acceptance(p, q) for p, q in rows])


def _probabilities(logits: Tensor, parameters: SamplingParameters) -> Tensor:
    if parameters.greedy:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
    return shaped(logits.float(), parameters).softmax(dim=-1)


@torch.no_grad()
def measure_costs(
    target: Transformer,
    proposer: Proposer,
    text: Sequence[int],
    most: int = 6,
    repeats: int = 9,
) -> Costs:
    """At batch 1, while `text` is written: the seconds of a drafted token, and of a pass over 1 to
    `most` + 1 tokens, over those of a pass over one."""
    if len(text) < repeats + 3:
        raise InputError(
            f"a text of {len(text)} tokens is over before {repeats} repeats are: give "
            f"{repeats + 3} tokens or more"
        )
    tokens = torch.tensor([list(text)], device=target.embed.weight.device)
    cache = DenseCache.of(target, 1, room=len(text) + most + 1)
    hidden = read_on(target, tokens, cache)[0]  # (T, D)
    passes = {
        count: partial(_pass, target, cache, tokens[:, :count]) for count in range(1, most + 2)
    }
    timings = compare(passes, repeats).timings
    base = timings[1].median
    draft = _draft_seconds(proposer, text, hidden, most, repeats) / most
    return Costs(draft / base, tuple(timings[count].median / base for count in passes))


def _pass(target: Transformer, cache: DenseCache, tokens: Tensor) -> None:
    """Reads tokens (1, T), and forgets them."""
    before = list(cache.lengths)
    target.head(read_on(target, tokens, cache)[0])
    cache.truncate(before)


def _draft_seconds(
    proposer: Proposer, text: Sequence[int], hidden: Tensor, most: int, repeats: int
) -> float:
    """The median of a proposal of `most` tokens, the text one token longer each time."""
    seconds, key, shown = [], object(), 0
    for end in range(len(text) - repeats - 1, len(text)):
        asked = Asked(key, text[:end], most, SamplingParameters(), hidden[shown : end - 1])
        seconds.append(seconds_of(partial(proposer.propose, [asked])))
        shown = end - 1
    proposer.forget(key)
    return Timing(tuple(seconds[1:])).median  # the first one reads all of the text
