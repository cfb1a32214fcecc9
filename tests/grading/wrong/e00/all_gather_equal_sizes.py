# exercise: ring_all_gather
# says: size the receive buffer for the chunk that is coming

import torch


def ring_all_gather(group, chunk, sizes):
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n

    places = [torch.empty_like(chunk) for _ in range(n)]
    places[me] = chunk
    for step in range(n - 1):
        group.exchange(places[(me - step) % n], right, places[(me - step - 1) % n], left)
    return torch.cat(places)
