# exercise: naive_all_reduce
# says: keep the plan of the broken one

import torch


def naive_all_reduce(group, tensor):
    total = tensor.clone()
    for step in range(1, group.size):
        to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        total += group.exchange(tensor, to, torch.empty_like(tensor), source)
    return total
