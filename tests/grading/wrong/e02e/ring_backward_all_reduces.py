# exercise: ring_backward
# says: a rank holds the gradients of all N

import torch


def pass_on(group, tensor):
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


def ring_backward(group, kv, gradients):
    dq, every = 0, [None] * group.size
    for owner, block in around(group, kv):
        dq_part, every[owner] = gradients(owner, block)
        dq = dq + dq_part
    return dq, group.all_reduce(torch.stack(every))[group.rank]
