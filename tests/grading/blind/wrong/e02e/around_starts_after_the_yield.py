# exercise: around
# says: or nothing travels while the caller computes
# the message starts only when the caller comes back, so nothing travels while the rank
# computes; the docstring says "Call `pass_on` *before* a block is yielded, and its result when
# the caller comes back".

import torch


def pass_on(group, tensor):  # given by the notebook
    """Starts `tensor` to the right; calling the result waits for what comes from the left."""
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


def around(group, block):
    for step in range(group.size):
        yield (group.rank - step) % group.size, block
        if step + 1 < group.size:
            block = pass_on(group, block)()
