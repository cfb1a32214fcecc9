# right: reduce-scatter slices by divmod instead of tensor_split and adds into what arrived; all-gather keeps arrivals in a dict and concatenates at the end; all-reduce works out its sizes by divmod
import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    N, flat = group.size, tensor.reshape(-1)
    base, extra = divmod(flat.numel(), N)

    def piece(c):
        c = c % N
        start = c * base + min(c, extra)
        return flat[start : start + base + (1 if c < extra else 0)]

    travelling = piece(group.rank - 1)
    for c in range(group.rank - 2, group.rank - N - 1, -1):
        arrived = torch.empty_like(piece(c))
        group.exchange(travelling, (group.rank + 1) % N, arrived, (group.rank - 1) % N)
        arrived += piece(c)
        travelling = arrived
    return travelling


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    N, owner = group.size, group.rank
    known = {owner: chunk}
    while len(known) < N:
        before = (owner - 1) % N
        known[before] = torch.empty(sizes[before], dtype=chunk.dtype, device=chunk.device)
        group.exchange(known[owner], (group.rank + 1) % N, known[before], (group.rank - 1) % N)
        owner = before
    return torch.cat([known[r] for r in range(N)])


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    base, extra = divmod(tensor.numel(), group.size)
    sizes = [base + (r < extra) for r in range(group.size)]
    mine = ring_reduce_scatter(group, tensor)
    return ring_all_gather(group, mine, sizes).reshape(tensor.shape)
