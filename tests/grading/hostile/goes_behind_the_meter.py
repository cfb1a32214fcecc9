# exercise: sum_over_ranks
# says: past the group's meter

import torch.distributed as dist


def sum_over_ranks(group, x):
    dist.all_reduce(x)
    return x
