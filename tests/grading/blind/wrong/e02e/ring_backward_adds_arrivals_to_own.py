# exercise: ring_backward
# says: add it to this rank's part of that and pass both on
# takes every gradient that arrives for the own block's and passes on only its own parts, which
# is right on two ranks only; the docstring: "To every other add what came from the left, if
# anything did yet, and `pass_on` the sum".

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
    dq, own, coming = 0, None, None
    for owner, block in _around(group, kv):
        d, d_block = gradients(owner, block)
        dq = dq + d
        if owner == group.rank:
            own = d_block
        else:
            if coming is not None:
                own = own + coming()
            coming = pass_on(group, d_block)
    if coming is not None:
        own = own + coming()
    return dq, own
