# exercise: ring_all_gather
# says: ready-made all_reduce

import torch


def ring_all_gather(group, chunk, sizes):
    out = chunk.new_zeros(sum(sizes))
    out.split(sizes)[group.rank].copy_(chunk)
    return group.all_reduce(out)
