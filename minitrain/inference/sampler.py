"""One token for each of many requests, each by its own parameters and its own generator.

With one generator for all, what a request is told would depend on who else is in its batch and on
what they draw. Here request and seed alone decide, and a request that is preempted goes on where it
was: its generator is its own. Greedy rows are one argmax; rows with the same cuts are cut together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from minitrain.inference.logits import cut, draw, likeliest, penalised
from minitrain.inference.parameters import SamplingParameters


class Asking(Protocol):
    """The part of a request that the sampler reads."""

    parameters: SamplingParameters
    generator: torch.Generator
    prompt: Sequence[int]

    @property
    def told(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Drawn:
    """A token; the log probabilities, if they were asked for, are the model's own: before
    penalties, temperature and cuts."""

    token: int
    log_probability: float | None = None
    likeliest: tuple[tuple[int, float], ...] = ()  # (token, log probability), the likeliest first


def sample(logits: Tensor, requests: Sequence[Asking]) -> list[Drawn | None]:
    """logits (B, V), request b asks for a token of row b: None where its logits are no numbers."""
    tokens, numbers = _tokens(logits.float(), requests)
    return [
        with_log_probabilities(token, logits[row], request.parameters.log_probabilities)
        if numbers[row]
        else None
        for row, (token, request) in enumerate(zip(tokens, requests))
    ]


def _tokens(logits: Tensor, requests: Sequence[Asking]) -> tuple[list[int], list[bool]]:
    """A token of each row, and whether the likeliest one's logit is a finite number: NaN, where
    there is one, counts as the largest."""
    changed = [row for row, request in enumerate(requests) if request.parameters.penalised]
    if changed:
        logits = logits.clone()
        for row in changed:
            one = requests[row]
            logits[row] = penalised(logits[row], one.prompt, one.told, one.parameters)
    tokens = likeliest(logits)
    numbers = logits[range(len(tokens)), tokens].isfinite().tolist()
    for (temperature, *cuts), rows in _alike(requests).items():
        uniforms = [torch.rand((), generator=requests[row].generator) for row in rows]
        below = logits[rows] - logits[rows].amax(dim=-1, keepdim=True)  # however low temperature is
        kept = cut(below / temperature, *cuts)
        for row, token in zip(rows, draw(kept, torch.stack(uniforms).to(kept.device)).tolist()):
            tokens[row] = token
    return tokens, numbers


def _alike(requests: Sequence[Asking]) -> dict[tuple, list[int]]:
    """The rows that draw, by temperature and cuts."""
    groups = defaultdict(list)
    for row, request in enumerate(requests):
        p = request.parameters
        if not p.greedy:
            groups[p.temperature, p.top_k, p.top_p, p.min_p].append(row)
    return groups


def with_log_probabilities(token: int, logits: Tensor, wanted: int | None) -> Drawn:
    """logits (V,), of which the token was drawn."""
    if wanted is None:
        return Drawn(token)
    logs = logits.float().log_softmax(dim=-1)  # (V,)
    values, tokens = logs.topk(min(wanted, len(logs)))
    return Drawn(token, float(logs[token]), tuple(zip(tokens.tolist(), values.tolist())))
