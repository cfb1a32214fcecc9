"""The draft length: speed-up of speculation in closed form, measured costs, and the best length.

Let each draft token be accepted with probability a, independently, and the draft model take c times
the target's seconds for a token. A round of g draft tokens then generates and costs

    tokens  E = 1 + a + a² + … + a^g = (1 - a^(g+1)) / (1 - a)
    seconds     g·c + v                  in the target's passes over one token

and is E / (g·c + v) times as fast as the target alone. The paper has v = 1: a pass over g + 1
tokens takes as long as one over a single token, since both read the same weights. If FLOPs matter
too (a CPU, a large batch) v grows with g, and speculation can lose. Also, acceptance varies within
a text: a hard position loses its whole run, an easy one could have gone on, so E at the mean
of a is not the mean of E.

`AdaptiveLength` drafts as long as the last token still pays. In a round of g draft tokens with k
accepted, the target has judged k + 1 of them (k accepted, one not), or all g. Among those
judged, the accepted ones estimate the acceptance a; older ones count less, as a text has easy and
hard stretches:

    a = (m·prior + Σ 0.9^age·kept) / (m + Σ 0.9^age)          over all draft tokens judged

and the length is the fastest by the formula, at the measured costs of a draft token and of a pass
over g + 1 tokens. At length 0 nothing is drafted, old observations fade, a returns to its prior,
and drafts are tried again. It depends on the text alone, not on a clock, so that the same seed
generates the same text.

Papers: Leviathan et al., arXiv 2211.17192, section 3.5, theorems 3.5, 3.8 and 3.11; Liu et al.
(adaptive draft lengths in serving), 2406.14066. Shapes: B texts  T tokens  V vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import shaped
from minitrain.inference.speculation.plain import best_length
from minitrain.inference.speculation.proposer import Asked, Proposer
from minitrain.measure.clock import Timing, compare, seconds_of
from minitrain.model.transformer import Transformer

PLAIN = SamplingParameters(temperature=1.0)


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """p, q (..., V) -> (...): Σ min(p, q), the probability that a draw from q is accepted."""
    return p.minimum(q).sum(dim=-1)


def expected_tokens(acceptance: float, length: int) -> float:
    """E: 1 at acceptance 0 or without drafts, g + 1 at acceptance 1."""
    if not 0 <= acceptance <= 1:
        raise InputError(f"an acceptance of {acceptance} is no probability: give 0 to 1")
    if length < 0:
        raise InputError(f"a draft of {length} tokens: give 0 (none) or more")
    if acceptance == 1:
        return length + 1.0
    return (1 - acceptance ** (length + 1)) / (1 - acceptance)


def speed_up(
    acceptance: float, length: int, draft_cost: float, verification_cost: float = 1.0
) -> float:
    """The speed-up over the target alone; costs in the target's one-token passes: c of a drafted
    token, v of the pass over all g + 1. Below 1 speculation loses."""
    if draft_cost < 0 or verification_cost <= 0:
        raise InputError(
            f"a draft cost of {draft_cost} and a verification cost of {verification_cost}: seconds "
            "over those of a target's pass, 0 or more and above 0"
        )
    return expected_tokens(acceptance, length) / (length * draft_cost + verification_cost)


@dataclass(frozen=True)
class Costs:
    """Costs in units of the target's one-token pass, from `measure_costs`."""

    draft: float  # one drafted token
    passes: tuple[float, ...]  # the pass over 1, 2, … tokens: passes[g] with g drafts

    def __post_init__(self) -> None:
        if self.draft < 0 or not self.passes or min(self.passes) <= 0:
            raise InputError(
                f"costs of {self.draft} a draft and {self.passes} a pass: give 0 or more for a "
                "draft, and above 0 for the pass over 1, 2, … tokens"
            )


@torch.no_grad()
def measure_acceptance(
    target: Transformer,
    draft: Transformer,
    texts: Tensor,
    parameters: SamplingParameters = PLAIN,
) -> Tensor:
    """texts (B, T) int64 -> (B, T): the acceptance probability of a draft after each token.

    Σ min(p, q); if greedy, 1 or 0: whether both models have the same likeliest token.
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
    """At batch 1, while generating `text`: the time of a drafted token, and of passes over 1 to
    `most` + 1 tokens, relative to a one-token pass."""
    needed = max(repeats + 3, most + 1)
    if len(text) < needed:
        raise InputError(
            f"a text of {len(text)} tokens is over before {repeats} repeats, or a pass over "
            f"{most + 1}, are: give {needed} tokens or more"
        )
    tokens = torch.tensor([list(text)], device=target.embed.weight.device)
    cache = DenseCache.of(target, 1, room=len(text) + most + 1)
    hidden = read_on(target, tokens, cache)[0]  # (T, D)

    def read(count: int) -> None:
        """Reads `count` tokens, then drops them from the cache."""
        before = list(cache.lengths)
        target.head(read_on(target, tokens[:, :count], cache)[0])
        cache.truncate(before)

    passes = {count: partial(read, count) for count in range(1, most + 2)}
    timings = compare(passes, repeats).timings
    base = timings[1].median
    draft = _draft_seconds(proposer, text, hidden, most, repeats) / most
    return Costs(draft / base, tuple(timings[count].median / base for count in passes))


def _draft_seconds(
    proposer: Proposer, text: Sequence[int], hidden: Tensor, most: int, repeats: int
) -> float:
    """Median seconds of a proposal of `most` tokens, as the text grows by one token each time."""
    seconds, key, shown = [], object(), 0
    for end in range(len(text) - repeats - 1, len(text)):
        asked = Asked(key, text[:end], most, SamplingParameters(), hidden[shown : end - 1])
        seconds.append(seconds_of(partial(proposer.propose, [asked])))
        shown = end - 1
    proposer.forget(key)
    return Timing(tuple(seconds[1:])).median  # the first one reads all of the text


class Length(Protocol):
    most: int  # the maximum draft length

    def next(self, key: Hashable) -> int:
        """The maximum length of a request's next draft."""

    def observe(self, key: Hashable, drafted: int, kept: int) -> None:
        """Records the outcome of a request's round."""

    def forget(self, key: Hashable) -> None:
        """Drops a finished request's state."""


@dataclass(frozen=True)
class FixedLength:
    most: int = 4

    def __post_init__(self) -> None:
        if self.most < 0:
            raise InputError(f"a draft of {self.most} tokens: give 0 (none) or more")

    def next(self, key: Hashable) -> int:
        return self.most

    def observe(self, key: Hashable, drafted: int, kept: int) -> None:
        pass

    def forget(self, key: Hashable) -> None:
        pass


class AdaptiveLength:
    """The best length for each request from its acceptances so far; 0 to len(passes) - 1."""

    def __init__(self, costs: Costs, prior: float = 0.7, weight: float = 2.0, fade: float = 0.9):
        """`prior`: the initial acceptance, with the weight of `weight` observed tokens."""
        self.costs, self.most = costs, len(costs.passes) - 1
        self.prior, self.weight, self.fade = prior, weight, fade
        self.seen: dict[Hashable, tuple[float, float]] = {}  # weighted counts: accepted, judged

    def acceptance(self, key: Hashable) -> float:
        kept, looked_at = self.seen.get(key, (0.0, 0.0))
        return (self.weight * self.prior + kept) / (self.weight + looked_at)

    def next(self, key: Hashable) -> int:
        return best_length(self.acceptance(key), self.costs.draft, self.costs.passes)[0]

    def observe(self, key: Hashable, drafted: int, kept: int) -> None:
        before, looked_at = self.seen.get(key, (0.0, 0.0))
        if drafted == 0:
            self.seen[key] = self.fade * before, self.fade * looked_at
        for place in range(min(kept + 1, drafted)):
            before, looked_at = self.fade * before + (place < kept), self.fade * looked_at + 1
            self.seen[key] = before, looked_at

    def forget(self, key: Hashable) -> None:
        self.seen.pop(key, None)
