"""The formula of speculation's gain, costs, and lengths that follow it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.inference.speculation.draft_model import DraftModel
from minitrain.inference.speculation.length import (
    AdaptiveLength,
    Costs,
    acceptance,
    expected_tokens,
    measure_costs,
    speed_up,
)
from minitrain.inference.speculation.ngram import NGram
from minitrain.inference.speculation.plain import best_length
from minitrain.inference.speculation.verification import verify
from minitrain.model.transformer import build

from ...model.peers import SMALL

ANY = st.floats(0, 1)


@given(a=ANY, g=st.integers(0, 20))
def test_expected_tokens_is_the_sum_that_the_fraction_closes(a, g):
    assert expected_tokens(a, g) == pytest.approx(sum(a**i for i in range(g + 1)), rel=1e-6)


def test_limits_and_published_rows():
    assert expected_tokens(0, 7) == expected_tokens(0.9, 0) == 1
    assert expected_tokens(1, 7) == 8
    assert expected_tokens(1 - 1e-9, 7) == pytest.approx(8)
    assert speed_up(1, 4, 0) == 5  # a perfect draft for nothing
    assert speed_up(1, 9, 1) == pytest.approx(1)  # the target as its own draft: g + 1 over g + 1
    assert speed_up(0, 4, 0.1) == pytest.approx(1 / 1.4)
    assert speed_up(0.5, 0, 3) == 1
    # Leviathan et al., table 1 (c near 0): speed-ups in tokens a pass
    for a, g, factor in [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 5, 3.69), (0.9, 10, 6.86)]:
        assert speed_up(a, g, 0) == pytest.approx(factor, abs=5e-3)
    # half of the texts easy, half hard: the mean acceptance says too little
    assert expected_tokens(0.6, 4) < (expected_tokens(0.9, 4) + expected_tokens(0.3, 4)) / 2


@given(a=ANY, c=st.floats(0, 2), most=st.integers(0, 12))
def test_no_other_length_is_faster_than_the_best(a, c, most):
    best, speeds = best_length(a, c, [1 + g / 9 for g in range(most + 1)])
    assert speeds == pytest.approx([speed_up(a, g, c, 1 + g / 9) for g in range(most + 1)])
    assert best == speeds.index(max(speeds))


def test_when_drafts_cost_as_much_as_they_bring_there_are_none():
    assert best_length(0.5, 0.6, [1.0] * 11)[0] == 0  # c >= a never pays (corollary 3.9)
    assert best_length(0.5, 0.0, [1.0] * 11)[0] == 10
    assert best_length(0.9, 0.1, range(1, 12))[0] == 0  # where every token of a pass costs one


def test_acceptance_is_what_verification_keeps_and_the_formula_counts_the_tokens_of_a_pass():
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 6, generator=generator).softmax(dim=-1)
    passes, g = 50_000, 4
    drafts = torch.multinomial(q, passes * g, replacement=True, generator=generator).view(-1, g)
    uniforms = torch.rand(passes, g + 1, generator=generator)
    _, kept = verify(p.expand(passes, g + 1, 6), q.expand(passes, g, 6), drafts, uniforms)
    own = float(acceptance(p, q))
    assert (kept > 0).float().mean() == pytest.approx(own, abs=0.009)  # 4 sigma
    spread = 4 * float(kept.float().std()) / passes**0.5
    assert kept.float().mean() + 1 == pytest.approx(expected_tokens(own, g), abs=spread)
    assert acceptance(p, p) == pytest.approx(1)
    assert acceptance(torch.eye(2)[0], torch.eye(2)[1]) == 0


def test_an_adaptive_length_learns_forgets_and_tries_again():
    length = AdaptiveLength(Costs(0.2, (1.0,) * 9), prior=0.7)
    start = length.next("a")
    for _ in range(10):
        length.observe("a", 8, 8)
    assert length.acceptance("a") > 0.9 and length.next("a") == 8 > start
    assert length.next("b") == start, "each request has its own"
    for _ in range(30):
        length.observe("a", 8, 0)
    assert length.next("a") == 0
    rounds = 0
    while length.next("a") == 0:
        length.observe("a", 0, 0)
        rounds += 1
    assert 0 < rounds < 40
    length.forget("a")
    assert length.next("a") == start


def test_acceptance_is_estimated_from_what_was_looked_at():
    """Of 4 drafts with 2 kept, the fourth was never looked at."""
    length = AdaptiveLength(Costs(0.2, (1.0,) * 5), prior=0.5, weight=0.0, fade=1.0)
    length.observe("a", 4, 2)
    length.observe("a", 4, 4)
    assert length.acceptance("a") == pytest.approx(6 / 7)


def test_costs_are_over_those_of_a_pass():
    target = build(SMALL)
    costs = measure_costs(target, DraftModel(target), list(range(20)), most=3, repeats=5)
    assert len(costs.passes) == 4 and costs.passes[0] == 1
    free = measure_costs(target, NGram(), list(range(20)), most=3, repeats=5)
    assert 0 < free.draft < costs.draft, "a search in the text, and a pass of the target"
    for length, most, needed in ((3, 6, 8), (9, 12, 13)):
        with pytest.raises(InputError, match=f"{needed} tokens or more"):
            measure_costs(target, NGram(), list(range(length)), most, repeats=5)
    with pytest.raises(InputError, match="above 0"):
        Costs(0.1, ())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_tokens(1.1, 2), "no probability"),
        (lambda: expected_tokens(0.5, -1), "draft of -1"),
        (lambda: speed_up(0.5, 2, -1), "draft cost of -1"),
        (lambda: NGram(longest=0), "longest is 0"),
    ],
)
def test_impossible_numbers_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
