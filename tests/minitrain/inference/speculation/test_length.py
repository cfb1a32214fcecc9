"""The formula of speculation's gain, lengths that follow it, and lab e09b's short versions."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.inference.sampling import draw
from minitrain.inference.speculation import plain
from minitrain.inference.speculation.draft_model import DraftModel
from minitrain.inference.speculation.length import (
    AdaptiveLength,
    Costs,
    acceptance,
    expected_tokens,
    measure_costs,
    speed_up,
)
from minitrain.inference.speculation.medusa import MedusaHeads, best_tree, parents_of
from minitrain.inference.speculation.ngram import NGram
from minitrain.inference.speculation.plain import best_length
from minitrain.inference.speculation.proposer import Draft
from minitrain.inference.speculation.verification import verify
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

from ...model.peers import SMALL

ANY = st.floats(0, 1)


@given(a=ANY, g=st.integers(0, 20))
def test_expected_tokens_is_the_sum_that_the_fraction_closes(a, g):
    assert expected_tokens(a, g) == pytest.approx(sum(a**i for i in range(g + 1)), rel=1e-6)


def test_limits_and_published_rows():
    assert expected_tokens(1, 7) == 8 == pytest.approx(expected_tokens(1 - 1e-9, 7))
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


def test_impossible_numbers_and_disorderly_drafts_are_refused():
    for call, message in (
        (lambda: expected_tokens(1.1, 2), "no probability"),
        (lambda: expected_tokens(0.5, -1), "draft of -1"),
        (lambda: speed_up(0.5, 2, -1), "draft cost of -1"),
        (lambda: NGram(longest=0), "longest is 0"),
        (lambda: Draft((1, 2), (1, -1)), "token before it"),
        (lambda: Draft((1, 2), (-1,)), "2 tokens"),
        (lambda: Draft((1, 2), (-1, -1), torch.rand(2, 4)), "which are a chain"),
    ):
        with pytest.raises(InputError, match=message):
            call()


# Lab e09b's short versions, and what the package builds of trees on them


#    0 ┬ 1 ─ 3        tokens  5 ┬ 6 ─ 8
#      └ 2 ─ 4                  └ 7 ─ 8
PARENTS, TOKENS = (-1, 0, 0, 1, 2), (5, 6, 7, 8, 8)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_verification_is_that_of_the_package(most: int):
    generator = torch.Generator().manual_seed(most)
    p = torch.randn(200, most + 1, 6, generator=generator).softmax(dim=-1)
    q = torch.randn(200, most, 6, generator=generator).softmax(dim=-1)
    drafts = torch.randint(6, (200, most), generator=generator)
    uniforms = torch.rand(200, most + 1, generator=generator)

    def pick(weights):
        return draw(weights.log(), uniforms[:, -1])

    got = plain.verify(p, q, drafts, uniforms[:, :-1], pick)
    assert all(map(torch.equal, got, verify(p, q, drafts, uniforms)))


def test_verification_of_p_that_is_q_but_for_rounding():
    p = torch.tensor([[[0.5, 0.5], [1.0, 0.0]]])
    coins, rows = torch.tensor([[1 - 2**-24]]), []

    def pick(weights):
        rows.append(weights)
        return torch.zeros(1, dtype=torch.long)

    plain.verify(p, p[:, :1] * (1 + 2e-7), torch.tensor([[1]]), coins, pick)
    assert torch.equal(rows[0], p[:, 0])


def test_lookup_is_that_of_the_package():
    generator = torch.Generator().manual_seed(0)
    for length in range(1, 40):
        tokens = torch.randint(3, (length,), generator=generator).tolist()
        for longest, most in ((1, 4), (3, 2), (4, 0)):
            want = NGram(longest).lookup(tokens, most)
            assert plain.ngram_draft(tokens, most, longest) == want


def test_a_node_reads_the_text_itself_and_its_way():
    ways = [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 2, 4}]
    seen, positions = plain.tree_attention(PARENTS, 4)
    assert seen[:, :4].all()
    assert [set(row.nonzero()[:, 0].tolist()) for row in seen[:, 4:]] == ways
    assert positions.tolist() == [4, 5, 5, 6, 6]
    assert Draft(TOKENS, PARENTS).depth == 3 and Draft().depth == 0
    assert torch.equal(plain.tree_attention((-1, 0, 1), 0)[0], torch.ones(3, 3).tril().bool())


@pytest.mark.parametrize(
    ("own", "path"),
    [
        ([5, 7, 0, 8, 0, 9], [0, 2, 4]),  # after the text 5, then 7, then 8: all of a branch
        ([5, 6, 7, 8, 8, 8], [0, 1]),  # after node 1 the target says 7, which is no child of it
        ([5, 8, 8, 8, 8, 8], [0]),  # 8 is in the tree, but not under node 0
        ([6, 6, 6, 6, 6, 6], []),
    ],
)
def test_the_path_follows_the_targets_own_tokens(own, path):
    found, text = plain.accepted_path(TOKENS, PARENTS, own)
    assert found == path
    assert text == [*(TOKENS[node] for node in path), own[path[-1] + 1 if path else 0]]
    assert plain.accepted_path([], [], [8]) == ([], [8])


def test_heads_are_those_of_the_package():
    """A hidden vector goes through both in the same way."""
    target = build(ModelConfig(11, 8, 1, 2, 2, 16))
    heads = MedusaHeads(target, torch.arange(11), heads=3)
    torch.nn.init.normal_(heads.inner, std=0.3)
    hidden, tokens = torch.randn(2, 9, 8), torch.randint(11, (2, 9))
    loss = plain.medusa_loss(hidden, heads.inner, heads.outer, tokens, decay=1.0)
    logits = heads(hidden)  # (B, T, K, V)
    want = sum(
        torch.nn.functional.cross_entropy(
            logits[:, : -k - 2, k].flatten(0, 1), tokens[:, k + 2 :].flatten()
        )
        for k in range(3)
    )
    torch.testing.assert_close(loss, want)


def test_the_best_tree_is_the_best_of_all_trees():
    accuracy = torch.tensor([[0.5, 0.3, 0.1], [0.4, 0.35, 0.05]])

    def worth(paths):
        return sum(
            torch.tensor([float(accuracy[d, r]) for d, r in enumerate(path)]).prod()
            for path in paths
        )

    every = [path for size in (1, 2) for path in product(range(3), repeat=size)]
    for nodes in (1, 2, 4, 6):
        found = best_tree(accuracy, nodes)
        parents = parents_of(found)
        assert len(set(found)) == nodes
        assert parents == tuple(found.index(p[:-1]) if p[:-1] else -1 for p in found)
        greedy = sorted(every, key=lambda path: -worth([path]))[:nodes]
        assert worth(found) == pytest.approx(worth(greedy))
    assert len(best_tree(accuracy, 100)) == len(every)
