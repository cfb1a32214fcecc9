"""Drafts that were picked: the target draws its own token at each, and walks while it finds it.

    text … the ┬ cat ┬ sat ─ on        read in one pass: each node sees the text and the nodes on
               │     └ ran             its way from it, and its position is its depth
               └ dog ─ ran             target draws "cat", then "ran", then anything: 3 tokens

Where the target's draw at a node is one of its children the walk goes on there; where not, the
draw is the text's next token, and the walk ends. Every token is a plain draw of the target's, so
the text is not only distributed like the target's own: with the same chance it is the same text,
token for token, at every temperature. A node is kept with probability p(token): of rivals under
one parent at most one is, and their probabilities add up. A chain is a tree without rivals.

Papers: Cai et al. (Medusa), arXiv 2401.10774; Miao et al. (SpecInfer), 2305.09781; Fu et al.
(Lookahead), 2402.02057. Lab: e09b. Shapes: n nodes  V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from torch import Tensor

from minitrain.inference.speculation.proposer import ROOT, Draft

Branch = tuple[int, ...]  # a node, by the rank that is taken at each depth on the way to it


def children(draft: Draft) -> dict[tuple[int, int], int]:
    """(parent, token) -> node; of equal ones under one parent the last."""
    pairs = zip(draft.parents, draft.tokens)
    return {pair: node for node, pair in enumerate(pairs)}


def best_tree(accuracy: Tensor, nodes: int) -> list[Branch]:
    """The tree of so many nodes that keeps the most: its paths, each a rank at every depth.

    accuracy (depths, ranks): how often the guess of rank r for depth d is right. Taken to be
    independent, a node is reached with the product along its path, and the tree keeps the sum over
    its nodes: those with the greatest products, which are a tree, as a parent's is never smaller.
    """
    waiting: list[tuple[float, Branch]] = []
    depths, ranks = accuracy.shape

    def offer(path: Branch, reached: float) -> None:
        if len(path) < depths:
            for rank in range(ranks):
                heappush(waiting, (-reached * float(accuracy[len(path), rank]), (*path, rank)))

    offer((), 1.0)
    chosen: list[Branch] = []
    while waiting and len(chosen) < nodes:
        reached, path = heappop(waiting)
        chosen.append(path)
        offer(path, -reached)
    return sorted(chosen, key=lambda path: (len(path), path))


def parents_of(paths: Sequence[Branch]) -> tuple[int, ...]:
    """Each path's parent; paths stand after their beginnings."""
    place = {path: node for node, path in enumerate(paths)}
    return tuple(place[path[:-1]] if path[:-1] else ROOT for path in paths)
