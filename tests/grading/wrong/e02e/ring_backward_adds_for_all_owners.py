# exercise: ring_backward
# says: each belongs to one of them

import torch


def pass_on(group, tensor):
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


def ring_backward(group, kv, gradients):
    parts = [gradients(owner, block) for owner, block in around(group, kv)]
    return sum(dq for dq, _ in parts), sum(d_block for _, d_block in parts)
