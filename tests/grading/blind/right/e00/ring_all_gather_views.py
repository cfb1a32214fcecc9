# right: received straight into the views of one result
import torch


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    size, rank = group.size, group.rank
    whole = chunk.new_empty(sum(sizes))
    views = whole.split(list(sizes))
    views[rank].copy_(chunk)
    for leaving in range(rank, rank - size + 1, -1):
        group.exchange(
            views[leaving % size], (rank + 1) % size,
            views[(leaving - 1) % size], (rank - 1) % size,
        )
    return whole
