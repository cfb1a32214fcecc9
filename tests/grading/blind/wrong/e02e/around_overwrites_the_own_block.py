# exercise: around
# says: changed its input
# every arriving block is copied into the caller's own tensor, so the rank's own keys and values
# are gone after the ring and all yielded blocks are one and the same tensor; the docstring:
# "this rank's own, then the left neighbour's, …".

import torch


def pass_on(group, tensor):  # given by the notebook
    """Starts `tensor` to the right; calling the result waits for what comes from the left."""
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


def around(group, block):
    for step in range(group.size):
        coming = pass_on(group, block) if step + 1 < group.size else None
        yield (group.rank - step) % group.size, block
        if coming is not None:
            block.copy_(coming())  # no new memory each step
