from __future__ import annotations

from itertools import product

import pytest
import torch

from minitrain.errors import InputError
from minitrain.inference.speculation.proposer import Draft
from minitrain.inference.speculation.tree import ancestors, best_tree, depths, parents_of, walk

#    0 ┬ 1 ─ 3        tokens  5 ┬ 6 ─ 8
#      └ 2 ─ 4                  └ 7 ─ 8
PARENTS, TOKENS = (-1, 0, 0, 1, 2), (5, 6, 7, 8, 8)


def test_a_node_reads_itself_and_its_way_from_the_text():
    ways = [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 2, 4}]
    assert [set(row.nonzero()[:, 0].tolist()) for row in ancestors(PARENTS)] == ways
    assert depths(PARENTS) == [1, 2, 2, 3, 3]
    assert torch.equal(ancestors((-1, 0, 1)), torch.ones(3, 3).tril().bool()), "a chain is causal"


@pytest.mark.parametrize(
    ("own", "path"),
    [
        (
            [5, 7, 0, 8, 0, 9],
            [0, 2, 4],
        ),  # after the text 5, after it 7, after that 8: all of a branch
        ([5, 6, 7, 8, 8, 8], [0, 1]),  # after node 1 the target says 7, which is no child of it
        ([5, 8, 8, 8, 8, 8], [0]),  # 8 is in the tree, but not under node 0
        ([6, 6, 6, 6, 6, 6], []),
    ],
)
def test_the_walk_follows_the_targets_own_tokens(own, path):
    assert walk(TOKENS, PARENTS, own) == path
    assert walk((), (), [3]) == []


def test_rivals_share_the_probability_of_their_parent():
    """Over many draws each text comes as often as the target alone writes it."""
    generator, draws = torch.Generator().manual_seed(0), 20_000
    p = torch.rand(3, 3, generator=generator).softmax(dim=-1)  # after token i
    tokens, parents, found = (1, 2, 0, 1), (-1, -1, 0, 1), torch.zeros(3, 3)
    after = [0, *tokens]
    own = torch.stack(
        [torch.multinomial(p[t], draws, replacement=True, generator=generator) for t in after],
        dim=1,
    )
    for row in own.tolist():
        path = walk(tokens, parents, row)
        text = [*(tokens[node] for node in path), row[path[-1] + 1 if path else 0]]
        if len(text) == 1:  # token 0 has no node: the second token is drawn in the next round
            assert text == [0]
            continue
        found[text[0], text[1]] += 1
    expected = p[0][:, None] * p
    assert (found[1:] / draws - expected[1:]).abs().max() < 0.015  # 4 sigma


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
        closed = all(path[:-1] in found for path in found if path[:-1])
        assert closed and len(set(found)) == nodes
        greedy = sorted(every, key=lambda path: -worth([path]))[:nodes]
        assert worth(found) == pytest.approx(worth(greedy))
        assert parents_of(found) == tuple(
            found.index(path[:-1]) if path[:-1] else -1 for path in found
        )
    assert len(best_tree(accuracy, 100)) == len(every)


def test_a_disorderly_draft_is_named():
    with pytest.raises(InputError, match="token before it"):
        Draft((1, 2), (1, -1))
    with pytest.raises(InputError, match="2 tokens"):
        Draft((1, 2), (-1,))
    with pytest.raises(InputError, match="which are a chain"):
        Draft((1, 2), (-1, -1), torch.rand(2, 4))
