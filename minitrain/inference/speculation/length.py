"""Chooses the draft length: as long as its last token still pays.

After a round of g drafts of which k were kept, the target has looked at k + 1 of them (k kept, one
not), or at all g. Of those looked at, the kept ones estimate the acceptance a; older ones count
less, as a text has easy and hard stretches:

    a = (m·prior + Σ 0.9^age·kept) / (m + Σ 0.9^age)          over all drafts looked at

and the length is the one that formula.py says is fastest, at what a draft and a pass over g + 1
tokens were measured to cost. Where that is 0 nothing is drafted, the old ones fade, a goes back
to its prior, and drafts are tried again. It depends on the text alone and on no clock, so that the
same chance writes the same text.

Papers: Leviathan et al., arXiv 2211.17192, section 3.5; Liu et al. (adaptive draft lengths in
serving), 2406.14066. Lab: e09b. Shapes: g drafted tokens.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from minitrain.errors import InputError
from minitrain.inference.speculation.formula import best_length


class Length(Protocol):
    most: int  # no draft has more tokens

    def next(self, key: Hashable) -> int:
        """The most that a request's next draft may have."""

    def observe(self, key: Hashable, drafted: int, kept: int) -> None:
        """Records the outcome of a request's round."""

    def forget(self, key: Hashable) -> None:
        """The request is over."""


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


@dataclass(frozen=True)
class Costs:
    """In the target's passes over one token; `measured.measure_costs` gives them."""

    draft: float  # one drafted token
    passes: tuple[float, ...]  # the pass over 1, 2, … tokens: passes[g] with g drafts

    def __post_init__(self) -> None:
        if self.draft < 0 or not self.passes or min(self.passes) <= 0:
            raise InputError(
                f"costs of {self.draft} a draft and {self.passes} a pass: give 0 or more for a "
                "draft, and above 0 for the pass over 1, 2, … tokens"
            )


class AdaptiveLength:
    """The best length for each request, by what was kept of its drafts; 0 to len(passes) - 1."""

    def __init__(self, costs: Costs, prior: float = 0.7, weight: float = 2.0, fade: float = 0.9):
        """`prior`: the acceptance before anything was seen, worth `weight` tokens."""
        self.costs, self.most = costs, len(costs.passes) - 1
        self.prior, self.weight, self.fade = prior, weight, fade
        self.seen: dict[Hashable, tuple[float, float]] = {}  # kept, and looked at

    def acceptance(self, key: Hashable) -> float:
        kept, looked_at = self.seen.get(key, (0.0, 0.0))
        return (self.weight * self.prior + kept) / (self.weight + looked_at)

    def next(self, key: Hashable) -> int:
        cost = self.costs.passes.__getitem__
        return best_length(self.acceptance(key), self.costs.draft, self.most, cost)

    def observe(self, key: Hashable, drafted: int, kept: int) -> None:
        before, looked_at = self.seen.get(key, (0.0, 0.0))
        if drafted == 0:
            self.seen[key] = self.fade * before, self.fade * looked_at
        for place in range(min(kept + 1, drafted)):
            before, looked_at = self.fade * before + (place < kept), self.fade * looked_at + 1
            self.seen[key] = before, looked_at

    def forget(self, key: Hashable) -> None:
        self.seen.pop(key, None)
