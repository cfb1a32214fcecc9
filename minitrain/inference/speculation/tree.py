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

import torch
from torch import Tensor

from minitrain.inference.speculation.proposer import ROOT

Branch = tuple[int, ...]  # a node, by the rank that is taken at each depth on the way to it


def ancestors(parents: Sequence[int]) -> Tensor:
    """(n, n) bool: which nodes each one reads, itself among them."""
    seen = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent != ROOT:
            seen[node] |= seen[parent]
    return seen


def depths(parents: Sequence[int]) -> list[int]:
    """Each node's distance from the text's last token: 1 for those that follow it."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent == ROOT else found[parent] + 1)
    return found


def after(unread: int, parents: Sequence[int]) -> list[int]:
    """The parents of a draft's nodes and of the tokens before it, which are a chain."""
    return [*range(-1, unread - 1), *(unread + parent for parent in parents)]


def children(tokens: Sequence[int], parents: Sequence[int]) -> dict[tuple[int, int], int]:
    """(parent, token) -> node; of equal ones under one parent the last."""
    return {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens))}


def walk(tokens: Sequence[int], parents: Sequence[int], draws: Sequence[int]) -> list[int]:
    """The nodes that are kept, from the text on. draws (n + 1,): the target's own token after the
    text's last, then after each node; the new text is the kept tokens and the last one's draw."""
    under, path, at = children(tokens, parents), [], ROOT
    while (node := under.get((at, draws[at + 1]))) is not None:
        path.append(node)
        at = node
    return path


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
