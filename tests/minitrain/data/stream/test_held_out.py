"""Documents held out: every token is trained on or held out, none is both, and gradients are those
of a text in which they do not come."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.loader import Loader
from minitrain.data.packing import IGNORED, pack
from minitrain.data.stream.held_out import hold_out
from minitrain.data.stream.token_files import TokenRows, write_token_files
from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.training.loss import token_weighted_loss


def asked(packed) -> Counter:
    """How often each token is a target; tokens are unique in these tests."""
    return Counter(packed.targets[packed.targets != IGNORED].tolist())


def unique(sizes):
    """Documents in which no token comes twice, the end is 0."""
    numbers = iter(range(1, 10_000))
    return [[next(numbers) for _ in range(size)] for size in sizes]


@given(
    st.lists(st.integers(0, 30), min_size=4, max_size=40),
    st.integers(1, 9),
    st.integers(5, 60),
    st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_each_token_is_asked_for_once_on_one_side(tmp_path_factory, sizes, length, shard, seed):
    documents = unique(sizes)
    folder = tmp_path_factory.mktemp("tokens")
    write_token_files(folder, iter(documents), 10_000, 0, shard)
    held = hold_out(TokenRows(folder, length), seed, part=0.25, most_rows=10_000)
    sides = asked(held.training[:]), asked(held.rows)
    both = Counter({token for text in documents for token in text})
    ends = len(documents)
    assert sides[0] + sides[1] == both + Counter({0: ends})
    assert not (sides[0].keys() & sides[1].keys()) - {0}
    assert sum(sides[0].values()) == held.tokens
    left = (held.training[:].targets != IGNORED).any(dim=1)
    assert left.all(), "no row asks for nothing"
    whole = [text for text in documents if text and text[0] in sides[1]]
    assert all(set(text) <= sides[1].keys() for text in whole), "whole documents"


def test_at_most_so_many_rows_and_the_draw_is_the_seeds(tmp_path):
    write_token_files(tmp_path, unique([9] * 100), 10_000, 0, 300)
    rows = TokenRows(tmp_path, 8)
    held = hold_out(rows, 1, part=0.5, most_rows=3)
    assert len(held.rows) == 3 and 1000 - held.tokens == 30, "24 places hold 3 of 10 tokens"
    again, other = hold_out(rows, 1, 0.5, 3), hold_out(rows, 2, 0.5, 3)
    assert torch.equal(again.rows.tokens, held.rows.tokens)
    assert not torch.equal(other.rows.tokens, held.rows.tokens)


def test_few_documents_give_their_end(tmp_path):
    write_token_files(tmp_path, unique([50, 48]), 10_000, 0)
    held = hold_out(TokenRows(tmp_path, 10), 0, part=0.25)
    assert len(held.rows) == 2 and held.tokens == 80
    assert not (asked(held.rows).keys() & asked(held.training[:]).keys()) - {0}
    with pytest.raises(InputError, match="fills one row of 200 tokens, and one is held out"):
        hold_out(TokenRows(tmp_path, 200), 0)


def test_gradients_are_those_of_a_text_without_them(tmp_path):
    documents = [np.random.default_rng(i).integers(1, 40, 11).tolist() for i in range(12)]
    write_token_files(tmp_path, documents, 40, 0)
    held = hold_out(TokenRows(tmp_path, 24), 3, part=0.25)  # two documents a row
    out = set(held.training.documents.tolist())
    assert len(out) == 3
    others = pack([text for i, text in enumerate(documents) if i not in out], 24, 0)
    model = build(
        ModelConfig(vocab_size=40, layers=2, hidden_size=16, heads=2, kv_heads=2, ffn_size=32),
        seed=0,
    ).double()
    gradients = []
    for rows in (held.training, others):
        model.zero_grad()
        for batch in Loader(rows, 3, shuffle=False):
            logits = model(batch.tokens, batch.documents, batch.positions)
            token_weighted_loss(logits, batch.targets, 108).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
