"""Lab e09b's short versions, and what the package builds of trees on them."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from minitrain.errors import InputError
from minitrain.inference.sampling import draw
from minitrain.inference.speculation import plain
from minitrain.inference.speculation.medusa import MedusaHeads, best_tree, parents_of
from minitrain.inference.speculation.ngram import NGram
from minitrain.inference.speculation.proposer import Draft
from minitrain.inference.speculation.verification import verify
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (((1, 2), (1, -1)), "token before it"),
        (((1, 2), (-1,)), "2 tokens"),
        (((1, 2), (-1, -1), torch.rand(2, 4)), "which are a chain"),
    ],
)
def test_a_disorderly_draft_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        Draft(*given)
