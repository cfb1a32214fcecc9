# right: plain send/recv in ring_shift, parent and children from the bits of the place, chunks listed in travel order, pieces concatenated, one stacked buffer for all-to-all
import torch


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    arrived = torch.empty_like(tensor)
    if group.rank % 2:  # odd ranks listen first, so some neighbours always meet
        group.recv(arrived, before)
        group.send(tensor, after)
    else:
        group.send(tensor, after)
        group.recv(arrived, before)
    return arrived


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    me, n = group.rank, group.size
    place = (me - root) % n
    values = tensor.clone()
    reach = 1
    if place:
        parent = 1 << (place.bit_length() - 1)
        group.recv(values, (me - parent) % n)
        reach = 2 * parent
    while place + reach < n:
        group.send(values, (me + reach) % n)
        reach *= 2
    return values


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    n = group.size
    parts = tensor.flatten().tensor_split(n)
    first, *rest = [parts[(group.rank - 1 - i) % n] for i in range(n)]
    carried = first
    for mine in rest:
        arrived = torch.empty_like(mine)
        group.exchange(carried, (group.rank + 1) % n, arrived, (group.rank - 1) % n)
        arrived += mine
        carried = arrived
    return carried


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    n = group.size
    pieces = {group.rank: chunk}
    last = group.rank
    for _ in range(n - 1):
        coming = (last - 1) % n
        place = torch.empty(sizes[coming], dtype=chunk.dtype, device=chunk.device)
        group.exchange(pieces[last], (group.rank + 1) % n, place, (group.rank - 1) % n)
        pieces[coming] = place
        last = coming
    return torch.cat([pieces[r] for r in range(n)])


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    base, longer = divmod(tensor.numel(), group.size)
    sizes = [base + 1] * longer + [base] * (group.size - longer)
    part = ring_reduce_scatter(group, tensor)
    return ring_all_gather(group, part, sizes).reshape(tensor.shape)


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    n, me = group.size, group.rank
    sample = chunks[me]
    table = torch.empty((n, *sample.shape), dtype=sample.dtype, device=sample.device)
    rows = list(table.unbind(0))
    rows[me].copy_(sample)
    for s in range(1, n):
        group.exchange(chunks[(me + s) % n], (me + s) % n, rows[me - s], (me - s) % n)
    return rows


def naive_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    if group.rank > 0:
        group.send(tensor, 0)
        return group.recv(torch.empty_like(tensor), 0)
    total, others = tensor.clone(), range(1, group.size)
    for other in others:
        total.add_(group.recv(torch.empty_like(tensor), other))
    for other in others:
        group.send(total, other)
    return total
