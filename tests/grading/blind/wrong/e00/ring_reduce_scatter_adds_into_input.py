# exercise: ring_reduce_scatter
# says: changed its input
# The chunks are views of the input and the sums are added into them, so `tensor` changes and
# the result is a view of it; "`tensor` is left as it was".

import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    travelling = chunks[(group.rank - 1) % group.size]
    for step in range(group.size - 1):
        own = chunks[(group.rank - 2 - step) % group.size]
        own += group.exchange(travelling, right, torch.empty_like(own), left)
        travelling = own
    return travelling
