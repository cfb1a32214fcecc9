# exercise: around
# says: one rank alone has no neighbour

import torch


def pass_on(group, tensor):
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


def around(group, block):
    for step in range(group.size):
        coming = pass_on(group, block) if step < max(1, group.size - 1) else None
        yield (group.rank - step) % group.size, block
        if coming is not None:
            block = coming()
