# exercise: reshard
# says: is padding, and may be anything
# the end is not cut at `elements`, so the files' padding is read as if it were elements

import torch


def reshard(read, elements, old, new, rank, dtype):
    per_file, per_rank = -(-elements // old), -(-elements // new)
    first, last = rank * per_rank, (rank + 1) * per_rank
    part = torch.zeros(per_rank, dtype=dtype)
    for file in range(old):
        start, stop = max(first, file * per_file), min(last, (file + 1) * per_file)
        if start < stop:
            at = file * per_file
            part[start - first : stop - first] = read(file, start - at, stop - at)
    return part
