# exercise: reshard
# says: the part has the dtype that is given
# the part is made without `dtype`, so it is float32 always: float64 and large int64 states lose
# digits, bfloat16 changes its type.

import torch


def reshard(read, elements, old, new, rank, dtype):
    per_old, per_new = -(-elements // old), -(-elements // new)
    begin, end = rank * per_new, min((rank + 1) * per_new, elements)
    part = torch.zeros(per_new)
    for file in range(old):
        low = max(begin, file * per_old)
        high = min(end, (file + 1) * per_old)
        if low < high:
            part[low - begin : high - begin] = read(file, low - file * per_old, high - file * per_old)
    return part
