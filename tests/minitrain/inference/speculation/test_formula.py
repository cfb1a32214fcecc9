from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.inference.speculation.formula import (
    acceptance,
    best_length,
    expected_tokens,
    speed_up,
)
from minitrain.inference.speculation.verification import verify

ANY = st.floats(0, 1)


@given(a=ANY, g=st.integers(0, 20))
def test_expected_tokens_is_the_sum_that_the_fraction_closes(a, g):
    assert expected_tokens(a, g) == pytest.approx(sum(a**i for i in range(g + 1)), rel=1e-6)


def test_limits():
    assert expected_tokens(0, 7) == expected_tokens(0.9, 0) == 1
    assert expected_tokens(1, 7) == 8
    assert expected_tokens(1 - 1e-9, 7) == pytest.approx(8)
    assert speed_up(1, 4, 0) == 5  # a perfect draft for nothing
    assert speed_up(1, 9, 1) == pytest.approx(1)  # the target as its own draft: g + 1 over g + 1
    assert speed_up(0, 4, 0.1) == pytest.approx(1 / 1.4)
    assert speed_up(0.5, 0, 3) == 1


def test_published_rows():
    """Leviathan et al., table 1 (c near 0): speed-ups in tokens a pass."""
    for a, g, factor in [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 5, 3.69), (0.9, 10, 6.86)]:
        assert speed_up(a, g, 0) == pytest.approx(factor, abs=5e-3)


@given(a=ANY, c=st.floats(0, 2), most=st.integers(0, 12))
def test_no_other_length_is_faster_than_the_best(a, c, most):
    best = best_length(a, c, most)
    assert 0 <= best <= most
    assert all(speed_up(a, best, c) >= speed_up(a, g, c) for g in range(most + 1))


def test_when_drafts_cost_as_much_as_they_bring_there_are_none():
    assert best_length(0.5, 0.6, 10) == 0  # c >= a never pays (theorem 3.8 and corollary 3.9)
    assert best_length(0.5, 0.0, 10) == 10
    assert best_length(0.9, 0.1, 10, lambda g: 1 + g) == 0  # where every token of a pass costs one
    assert best_length(1.0, 1.0, 5) == 0


def test_acceptance_is_what_verification_keeps():
    p, q = torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    draws, generator = 100_000, torch.Generator().manual_seed(1)
    drafts = torch.multinomial(q, draws, replacement=True, generator=generator)[:, None]
    uniforms = torch.rand(draws, 2, generator=generator)
    kept = verify(p.expand(draws, 2, 6), q.expand(draws, 1, 6), drafts, uniforms)[1]
    assert kept.float().mean() == pytest.approx(float(acceptance(p, q)), abs=0.006)  # 4 sigma
    assert acceptance(p, p) == pytest.approx(1)
    assert acceptance(torch.eye(2)[0], torch.eye(2)[1]) == 0


def test_where_acceptance_is_alike_everywhere_the_formula_counts_the_tokens_of_a_pass():
    p, q = torch.randn(2, 6, generator=torch.Generator().manual_seed(2)).softmax(dim=-1)
    passes, g, generator = 50_000, 4, torch.Generator().manual_seed(3)
    drafts = torch.multinomial(q, passes * g, replacement=True, generator=generator)
    uniforms = torch.rand(passes, g + 1, generator=generator)
    p_rows, q_rows = p.expand(passes, g + 1, 6), q.expand(passes, g, 6)
    tokens = verify(p_rows, q_rows, drafts.view(passes, g), uniforms)[1] + 1.0
    expected = expected_tokens(float(acceptance(p, q)), g)
    assert tokens.mean() == pytest.approx(expected, abs=4 * float(tokens.std()) / passes**0.5)


def test_where_it_is_not_the_mean_acceptance_says_too_little():
    """Half of the texts are easy (0.9), half hard (0.3): E of the mean is below the mean of E."""
    assert expected_tokens(0.6, 4) < (expected_tokens(0.9, 4) + expected_tokens(0.3, 4)) / 2


def test_impossible_numbers_are_named():
    with pytest.raises(InputError, match="no probability"):
        expected_tokens(1.1, 2)
    with pytest.raises(InputError, match="draft of -1"):
        expected_tokens(0.5, -1)
    with pytest.raises(InputError, match="draft cost of -1"):
        speed_up(0.5, 2, -1)
