from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.parallel.tensor.layers import SharedRows, heads_of, share, shared_rows
from minitrain.ranks.launch import launch


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_every_query_reads_its_own_head_and_every_head_has_one_owner(group_size, kv_heads, data):
    heads = group_size * kv_heads
    ranks = data.draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    plans = [heads_of(rank, ranks, heads, kv_heads) for rank in range(ranks)]
    assert [query for plan in plans for query in plan.queries] == list(range(heads))
    assert [key for plan in plans for key in plan.owned] == list(range(kv_heads))
    for rank, plan in enumerate(plans):
        read = [plan.keys[place] for place in plan.reads]
        assert read == [query // group_size for query in plan.queries]
        assert set(read) == set(plan.keys), "no head is held that nobody reads"
        for key in plan.keys:
            holders = tuple(r for r in range(ranks) if key in plans[r].keys)
            assert plan.shared.get(key, (rank,)) == holders
        if plan.is_grouped:
            each = len(plan.queries) // len(plan.keys)
            assert read == [key for key in plan.keys for _ in range(each)]


def test_the_table_of_the_docstring():
    plans = [heads_of(rank, 4, 8, 2) for rank in range(4)]
    assert [list(plan.keys) for plan in plans] == [[0], [0], [1], [1]]
    assert plans[1].shared == {0: (0, 1)} and len(plans[1].owned) == 0
    assert plans[1].owned_rows(3) == range(3, 3) and plans[0].owned_rows(3) == range(3)
    assert heads_of(0, 2, 8, 2).owned_rows(3) is None
    assert not heads_of(0, 2, 6, 3).is_grouped, "queries 0 1 2 read heads 0 0 1"


def test_heads_that_do_not_split_are_refused():
    with pytest.raises(InputError, match=r"9 heads .* 2 ranks: use 8 or 10, or 3 ranks"):
        heads_of(0, 2, 9, 3)


def gradients(group, heads, kv_heads, size):
    """Each rank weighs the rows it holds by 1 + its number; what they get, and what was sent."""
    plan = heads_of(group.rank, group.size, heads, kv_heads)
    weight = torch.zeros(len(plan.keys) * size, 3, requires_grad=True)
    bias = torch.zeros(len(plan.keys) * size, requires_grad=True)
    rows = shared_rows(group, plan, size)
    ((shared_weight, shared_bias),) = share([(weight, bias)], rows)
    ((shared_weight.sum() + shared_bias.sum()) * (1 + group.rank)).backward()
    held = [sum(1 + r for r in plan.shared.get(key, (group.rank,))) for key in plan.keys]
    return weight.grad, bias.grad, held, group.trace.count("all_reduce")


@pytest.mark.parametrize("heads, kv_heads, ranks", [(6, 3, 2), (12, 4, 3), (4, 1, 4), (4, 2, 2)])
def test_shared_rows_are_summed_over_their_holders(heads, kv_heads, ranks):
    size = 2
    results = launch(gradients, heads, kv_heads, size, ranks=ranks)
    for rank, (weight, bias, held, count) in enumerate(results):
        want = torch.tensor(held, dtype=torch.float32).repeat_interleave(size)
        torch.testing.assert_close(bias, want)
        torch.testing.assert_close(weight, want[:, None].expand(-1, 3))
        assert count == len(heads_of(rank, ranks, heads, kv_heads).shared), "one message a head"


def test_without_shared_rows_nothing_is_done():
    pairs = [(torch.ones(2, 2, requires_grad=True), None)]
    assert share(pairs, SharedRows((), ()))[0][0] is pairs[0][0]
