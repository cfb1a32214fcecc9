# exercise: around
# says: so the next one is the left neighbour's
# names the owners rank, rank + 1, ... though blocks come from the left: rank, rank - 1, ...
# ("this rank's own, then the left neighbour's"); the same with two ranks only

import torch

if "pass_on" not in globals():  # given in the notebook

    def pass_on(group, tensor):
        arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
        leaving = group.isend(tensor, (group.rank + 1) % group.size)
        return lambda: (leaving.wait(), arriving.wait())[1]


def around(group, block: torch.Tensor):
    for step in range(group.size):
        coming = pass_on(group, block) if step + 1 < group.size else None
        yield (group.rank + step) % group.size, block
        if coming is not None:
            block = coming()
