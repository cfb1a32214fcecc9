"""Acceptance and costs of a pair of models, measured: what the formula needs to say who wins."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.formula import acceptance
from minitrain.inference.speculation.length import Costs
from minitrain.inference.speculation.proposer import Asked, Proposer, shaped
from minitrain.measure.clock import compare
from minitrain.model.transformer import Transformer

PLAIN = SamplingParameters(temperature=1.0)


@torch.no_grad()
def measured_acceptance(
    target: Transformer,
    draft: Transformer,
    texts: Tensor,
    parameters: SamplingParameters = PLAIN,
) -> Tensor:
    """texts (B, T) int64 -> (B, T): at each place Σ min(p, q), how probably a draft is kept there.

    Where greedy it is 1 or 0: whether both have the same likeliest token.
    """
    both = [torch.stack([_probabilities(model, text, parameters) for text in texts]) for model in (target, draft)]
    return acceptance(*both)


@torch.no_grad()
def measure_costs(
    target: Transformer, proposer: Proposer, text: Sequence[int], most: int = 8, repeats: int = 9
) -> Costs:
    """At batch 1 behind a text of two tokens at least: seconds of a pass over 1 to `most` + 1
    tokens and of a drafted token, over those of a pass over one."""
    ...
