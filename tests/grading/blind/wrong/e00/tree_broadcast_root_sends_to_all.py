# exercise: tree_broadcast
# says: the root sends to all of them
# the root sends to every other rank one by one, N - 1 messages in a row, but the docstring asks
# for "ceil(log2 N) rounds" ("Rank 0 of 8 sends three times, not seven").

import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    if group.rank != root:
        return group.recv(torch.empty_like(tensor), root)
    for other in range(group.size):
        if other != root:
            group.send(tensor, other)
    return tensor.clone()
