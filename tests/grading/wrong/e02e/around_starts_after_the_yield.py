# exercise: around
# says: call pass_on before the yield

import torch


def pass_on(group, tensor):
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)
    return lambda: (leaving.wait(), arriving.wait())[1]


def around(group, block):
    for step in range(group.size):
        yield (group.rank - step) % group.size, block
        if step + 1 < group.size:
            block = pass_on(group, block)()
