# right: tree_broadcast finds its one receive from the highest bit of its place and then only sends, all-to-all receives into the rows of one table, naive_all_reduce collects the parts before it adds.
import functools

import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    place = (group.rank - root) % group.size
    values = tensor.clone()
    next_distance = 1 << place.bit_length()
    if place:
        group.recv(values, (group.rank - next_distance // 2) % group.size)
    while place + next_distance < group.size:
        group.send(values, (group.rank + next_distance) % group.size)
        next_distance *= 2
    return values


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    table = chunks[0].new_empty((group.size, *chunks[0].shape))
    rows = list(table.unbind(0))
    rows[group.rank].copy_(chunks[group.rank])
    for step in range(1, group.size):
        target, origin = group.rank + step, group.rank - step
        group.exchange(chunks[target % group.size], target % group.size,
                       rows[origin % group.size], origin % group.size)
    return rows


def naive_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    if group.rank == 0:
        parts = [group.recv(torch.empty_like(tensor), r) for r in range(1, group.size)]
        total = functools.reduce(torch.add, parts, tensor.clone())
        for r in range(1, group.size):
            group.send(total, r)
    else:
        total = torch.empty_like(tensor)
        group.send(tensor, 0)
        group.recv(total, 0)
    return total
