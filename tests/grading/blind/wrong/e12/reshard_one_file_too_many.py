# exercise: reshard
# says: nothing of the next one
# the last file is end // size, not (end - 1) // size: where the part ends at a file's end, an
# empty piece of the next file (that may not exist) is read.

import torch


def reshard(read, elements, old, new, rank, dtype):
    per_old, per_new = -(-elements // old), -(-elements // new)
    begin = min(rank * per_new, elements)
    end = min(begin + per_new, elements)
    part = torch.zeros(per_new, dtype=dtype)
    if begin == end:
        return part
    for file in range(begin // per_old, end // per_old + 1):
        low, high = max(begin, file * per_old), min(end, (file + 1) * per_old)
        part[low - begin : high - begin] = read(file, low - file * per_old, high - file * per_old)
    return part
