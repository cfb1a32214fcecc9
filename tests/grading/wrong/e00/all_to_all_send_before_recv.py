# exercise: pairwise_all_to_all
# says: deadlock | rank

import torch


def pairwise_all_to_all(group, chunks):
    out = [torch.empty_like(chunk) for chunk in chunks]
    out[group.rank].copy_(chunks[group.rank])
    for other in range(group.size):
        if other != group.rank:
            group.recv(out[other], other)
            group.send(chunks[other], other)
    return out
