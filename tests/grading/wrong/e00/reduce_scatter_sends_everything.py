# exercise: ring_reduce_scatter
# says: you sent the whole tensor at each step

import torch


def ring_reduce_scatter(group, tensor):
    total, travelling = tensor.clone(), tensor
    for _ in range(group.size - 1):
        into = torch.empty_like(tensor)
        travelling = group.exchange(
            travelling, (group.rank + 1) % group.size, into, (group.rank - 1) % group.size
        )
        total = total + travelling
    return total.flatten().tensor_split(group.size)[group.rank].clone()
