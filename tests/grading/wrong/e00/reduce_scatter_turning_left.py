# exercise: ring_reduce_scatter
# says: the ring turns to the right

import torch


def ring_reduce_scatter(group, tensor):
    """The same ring the other way round, with non-blocking messages."""
    n, me = group.size, group.rank
    parts = [part.clone() for part in torch.tensor_split(tensor.reshape(-1), n)]
    for step in range(n - 1):
        going, coming = (me + 1 + step) % n, (me + 2 + step) % n
        box = torch.zeros_like(parts[coming])
        arriving = group.irecv(box, (me + 1) % n)
        leaving = group.isend(parts[going], (me - 1) % n)
        arriving.wait()
        leaving.wait()
        parts[coming] += box
    return parts[me]
