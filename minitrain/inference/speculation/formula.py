"""The gain of speculation in closed form: tokens a pass, and the speed-up, before anything is run.

Let each draft be kept with probability a, whatever came before, and the draft model take c times
the target's seconds for a token. A round of g drafts then writes and costs

    tokens  E = 1 + a + a² + … + a^g = (1 - a^(g+1)) / (1 - a)
    seconds     g·c + v                  in the target's passes over one token

and is E / (g·c + v) times as fast as the target alone. The paper has v = 1: a pass over g + 1
tokens takes as long as one over a single token, since both read the same weights. Where FLOPs cost
too (a CPU, a large batch) v grows with g, and speculation can lose. And the drafts of one text are
not alike: a hard place loses its whole run, an easy one could have gone on, so that E at the mean
of a is not the mean of E. Measured beside this by `bench/speculation.py`.

Paper: Leviathan et al., arXiv 2211.17192, theorems 3.5, 3.8 and 3.11. Lab: e09b.
Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from minitrain.errors import InputError


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """p, q (..., V) -> (...): Σ min(p, q), the probability that a draw from q is kept."""
    return p.minimum(q).sum(dim=-1)


def expected_tokens(acceptance: float, length: int) -> float:
    """E: 1 at acceptance 0 or without drafts, g + 1 at acceptance 1."""
    _check(acceptance, length)
    if acceptance == 1:
        return length + 1.0
    return (1 - acceptance ** (length + 1)) / (1 - acceptance)


def speed_up(
    acceptance: float, length: int, draft_cost: float, verification_cost: float = 1.0
) -> float:
    """The speed-up over the target alone; costs are in the target's passes over one token: c of one
    draft, v of the pass over all g + 1. Below 1 speculation loses."""
    if draft_cost < 0 or verification_cost <= 0:
        raise InputError(
            f"a draft cost of {draft_cost} and a verification cost of {verification_cost}: seconds "
            "over those of a target's pass, 0 or more and above 0"
        )
    return expected_tokens(acceptance, length) / (length * draft_cost + verification_cost)


def best_length(
    acceptance: float,
    draft_cost: float,
    most: int,
    verification_cost: Callable[[int], float] = lambda length: 1.0,
) -> int:
    """The length from 0 (do not speculate) to `most` that is fastest; the shortest of equals.

    `verification_cost(g)`: v of the pass over g + 1 tokens.
    """
    return max(
        range(most + 1),
        key=lambda g: (speed_up(acceptance, g, draft_cost, verification_cost(g)), -g),
    )


def _check(acceptance: float, length: int) -> None:
    if not 0 <= acceptance <= 1:
        raise InputError(f"an acceptance of {acceptance} is no probability: give 0 to 1")
    if length < 0:
        raise InputError(f"a draft of {length} tokens: give 0 (none) or more")
