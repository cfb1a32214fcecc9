# exercise: around
# says: yield N times, the own block among them

import torch


def pass_on(group, tensor):
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


def around(group, block):
    for step in range(1, group.size):
        block = pass_on(group, block)()
        yield (group.rank - step) % group.size, block
