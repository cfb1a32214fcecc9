# exercise: ring_all_reduce
# says: messages; an all-reduce on 4 ranks takes | sent

import torch


def ring_all_reduce(group, tensor):
    total, travelling = tensor.clone(), tensor
    for _ in range(group.size - 1):
        into = torch.empty_like(tensor)
        travelling = group.exchange(
            travelling, (group.rank + 1) % group.size, into, (group.rank - 1) % group.size
        )
        total = total + travelling
    return total
