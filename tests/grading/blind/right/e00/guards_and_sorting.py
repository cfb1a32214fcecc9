# right: naive_all_reduce returns early on the other ranks and adds after all parts have arrived; all-to-all collects in order of arrival and sorts; ring_shift and tree_broadcast in other words
import torch


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    ring = list(range(group.size))
    place = tensor.new_empty(tensor.shape)
    group.exchange(tensor, ring[group.rank + 1 - group.size], place, ring[group.rank - 1])
    return place


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    line = [(root + p) % group.size for p in range(group.size)]  # ranks by place
    place, values, have = line.index(group.rank), tensor.clone(), 1
    while have < group.size:
        pairs = list(zip(range(have), range(have, min(2 * have, group.size))))
        for giver, taker in pairs:
            if place == giver:
                group.send(values, line[taker])
            elif place == taker:
                group.recv(values, line[giver])
        have += len(pairs)
    return values


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    arrived = [(group.rank, chunks[group.rank].clone())]
    for step in range(1, group.size):
        to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        into = torch.empty_like(chunks[to])
        group.exchange(chunks[to], to, into, source)
        arrived.append((source, into))
    return [tensor for _, tensor in sorted(arrived, key=lambda pair: pair[0])]


def naive_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    if group.rank != 0:
        total = torch.empty_like(tensor)
        group.send(tensor, 0)
        group.recv(total, 0)
        return total
    others = range(1, group.size)
    parts = [torch.empty_like(tensor) for _ in others]
    for rank, part in zip(others, parts):
        group.recv(part, rank)
    total = tensor.clone()
    for part in parts:
        total += part
    for rank in others:
        group.send(total, rank)
    return total
