# exercise: ring_backward
# says: it waits at home for the others

import torch


def pass_on(group, tensor):
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


def ring_backward(group, kv, gradients):
    dq, coming = 0, None
    for owner, block in around(group, kv):
        dq_part, d_block = gradients(owner, block)
        dq = dq + dq_part
        if coming is not None:
            d_block = d_block + coming()
        coming = pass_on(group, d_block) if group.size > 1 else None
    return dq, d_block if coming is None else coming()
