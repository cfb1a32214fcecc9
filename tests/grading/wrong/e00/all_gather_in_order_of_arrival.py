# exercise: ring_all_gather
# says: put each at its own rank's place

import torch


def ring_all_gather(group, chunk, sizes):
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n

    got = [chunk]
    for step in range(n - 1):
        box = chunk.new_empty(sizes[(me - 1 - step) % n])
        got.append(group.exchange(got[-1], right, box, left))
    return torch.cat(got)
