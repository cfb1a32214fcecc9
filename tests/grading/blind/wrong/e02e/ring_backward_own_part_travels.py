# exercise: ring_backward
# says: in the dtype that `gradients` gives
# sends the own part on its way round, too, which makes N gradient messages; the docstring says
# "The own part waits at home … N-1 messages".

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
    dq, coming = 0, None
    for owner, block in _around(group, kv):
        d, d_block = gradients(owner, block)
        dq = dq + d
        if coming is not None:
            d_block = d_block + coming()
        if group.size > 1:
            coming = pass_on(group, d_block)
    return dq, d_block if coming is None else coming()
