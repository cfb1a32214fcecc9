# right: each node climbs to the text by itself and its depth gives the position; and
# accepted_path in one pass over the nodes in their order, without a dictionary
import itertools

import torch


def tree_attention(parents: list, read: int):
    def line(node):
        while node != -1:
            yield node
            node = parents[node]

    lines = [list(line(node)) for node in range(len(parents))]
    seen = torch.tensor(
        [
            [j < read or j - read in own for j in range(read + len(parents))]
            for own in map(set, lines)
        ]
    )
    positions = torch.tensor([read + len(own) - 1 for own in lines], dtype=torch.int64)
    return seen, positions


def accepted_path(tokens: list, parents: list, choices: list):
    path = [-1]
    for node, (token, parent) in enumerate(zip(tokens, parents)):
        # parents stand before their children, so one pass meets the whole path
        if parent == path[-1] and token == choices[parent + 1]:
            path.append(node)
    said = [choices[node + 1] for node in path]  # a kept node's token is its parent's choice
    return list(itertools.islice(path, 1, None)), said
