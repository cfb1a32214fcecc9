"""Lab e09b's plain versions are the package's own, written shorter."""

from __future__ import annotations

import pytest
import torch

from minitrain.inference.logits import draw
from minitrain.inference.speculation import plain
from minitrain.inference.speculation.drafts.medusa import MedusaHeads
from minitrain.inference.speculation.drafts.ngram import NGram
from minitrain.inference.speculation.formula import best_length, speed_up
from minitrain.inference.speculation.tree import ancestors, depths, walk
from minitrain.inference.speculation.verification import verify
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

TREE = ([3, 5, 3, 7, 5, 3, 9], [-1, -1, 0, 0, 1, 2, 5])  # tokens, parents


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


@pytest.mark.parametrize("acceptance", [0.0, 0.4, 0.83, 1.0])
def test_the_best_length_is_that_of_the_package(acceptance: float):
    passes = [1.0, 1.1, 1.15, 1.4, 1.6]
    best, speeds = plain.best_length(acceptance, 0.2, passes)
    assert best == best_length(acceptance, 0.2, 4, passes.__getitem__)
    assert speeds == pytest.approx(
        [speed_up(acceptance, g, 0.2, seconds) for g, seconds in enumerate(passes)]
    )


@pytest.mark.parametrize("parents", [[-1], [-1, 0, 1], TREE[1]])
def test_trees_are_those_of_the_package(parents: list[int]):
    seen, positions = plain.tree_attention(parents, 4)
    assert seen[:, :4].all() and torch.equal(seen[:, 4:], ancestors(parents))
    assert positions.tolist() == [3 + depth for depth in depths(parents)]


def test_the_path_is_that_of_the_package():
    generator, (tokens, parents) = torch.Generator().manual_seed(0), TREE
    for _ in range(300):
        some = torch.randint(4, (len(tokens) + 1,), generator=generator)
        choices = (3 + 2 * some).tolist()  # 3, 5, 7, 9
        path, text = plain.accepted_path(tokens, parents, choices)
        assert path == walk(tokens, parents, choices)
        assert text == [*(tokens[n] for n in path), choices[path[-1] + 1 if path else 0]]
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
