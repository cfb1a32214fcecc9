# a reader's own answers, from the notebook alone
import torch


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    right = (group.rank + 1) % group.size
    left = (group.rank - 1) % group.size
    into = torch.empty_like(tensor)
    return group.exchange(tensor, right, into, left)


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    rank, size = group.rank, group.size
    place = (rank - root) % size
    result = tensor.clone()
    distance = 1
    while distance < size:
        if place < distance:
            if place + distance < size:
                group.send(result, (rank + distance) % size)
        elif place < 2 * distance:
            group.recv(result, (rank - distance) % size)
        distance *= 2
    return result


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    travelling = chunks[left]
    for step in range(group.size - 1):
        own = chunks[(group.rank - 2 - step) % group.size]
        arrived = group.exchange(travelling, right, torch.empty_like(own), left)
        travelling = arrived + own
    return travelling


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    out = chunk.new_empty(sum(sizes))
    places = out.split(sizes)
    places[group.rank].copy_(chunk)
    for step in range(group.size - 1):
        sending = places[(group.rank - step) % group.size]
        coming = places[(group.rank - step - 1) % group.size]
        group.exchange(sending, right, coming, left)
    return out


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    sizes = [part.numel() for part in tensor.flatten().tensor_split(group.size)]
    mine = ring_reduce_scatter(group, tensor)
    return ring_all_gather(group, mine, sizes).view(tensor.shape)


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    rank, size = group.rank, group.size
    out = [torch.empty_like(chunk) for chunk in chunks]
    out[rank].copy_(chunks[rank])
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        group.exchange(chunks[to], to, out[source], source)
    return out


def naive_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    if group.rank == 0:
        for rank in range(1, group.size):
            total += group.recv(torch.empty_like(total), rank)
        for rank in range(1, group.size):
            group.send(total, rank)
    else:
        group.send(tensor, 0)
        group.recv(total, 0)
    return total
