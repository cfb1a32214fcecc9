# exercise: ring_all_reduce
# says: end with .view(tensor.shape)
# The sum comes back flat, (n,), not in the shape of `tensor`.

import torch


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    chunk = ring_reduce_scatter(group, tensor)
    sizes = [len(c) for c in tensor.flatten().tensor_split(group.size)]
    return ring_all_gather(group, chunk, sizes)
