# exercise: reshard
# says: what lies behind the last element is padding
# does not clip to `elements`: where parts end in padding, it reads the files' padding, "which
# may be anything", in place of zeros.

import torch


def reshard(read, elements, old, new, rank, dtype):
    per_old, per_new = -(-elements // old), -(-elements // new)
    begin, end = rank * per_new, (rank + 1) * per_new
    part = torch.zeros(per_new, dtype=dtype)
    for file in range(old):
        low = max(begin, file * per_old)
        high = min(end, (file + 1) * per_old)
        if low < high:
            part[low - begin : high - begin] = read(file, low - file * per_old, high - file * per_old)
    return part
