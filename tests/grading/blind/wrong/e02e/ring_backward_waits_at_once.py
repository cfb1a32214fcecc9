# exercise: ring_backward
# says: and call it when the next part is there to be added
# waits for each gradient as soon as it is started, so the link is idle during compute; the
# docstring's table has dkv of r-1 on the link while the rank computes for r-2.

import torch


def pass_on(group, tensor):  # given by the notebook
    """Starts `tensor` to the right; calling the result waits for what comes from the left."""
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


def _around(group, block):  # exercise 2, right
    for step in range(group.size):
        coming = pass_on(group, block) if step + 1 < group.size else None
        yield (group.rank - step) % group.size, block
        if coming is not None:
            block = coming()


def ring_backward(group, kv, gradients):
    dq, own, arrived = 0, None, None
    for owner, block in _around(group, kv):
        d, d_block = gradients(owner, block)
        dq = dq + d
        if owner == group.rank:
            own = d_block
            continue
        if arrived is not None:
            d_block = d_block + arrived
        arrived = pass_on(group, d_block)()
    return dq, own if arrived is None else own + arrived
