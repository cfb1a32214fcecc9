# exercise: ring_all_gather
# says: elements | expected | mismatch

import torch


def ring_all_gather(group, chunk, sizes):
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n

    places = [chunk.new_empty(size) for size in sizes]
    places[me] = chunk
    for step in range(n - 1):
        source = (me - 1 - step) % n
        group.exchange(chunk, right, places[source], left)
    return torch.cat(places)
