# exercise: around
# says: the last one has been everywhere
# the last block is sent on, too, which makes N messages; the docstring says "The last block
# goes no further: N-1 messages".

import torch


def pass_on(group, tensor):  # given by the notebook
    """Starts `tensor` to the right; calling the result waits for what comes from the left."""
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


def around(group, block):
    for step in range(group.size):
        coming = pass_on(group, block) if group.size > 1 else None
        yield (group.rank - step) % group.size, block
        if coming is not None:
            block = coming()
