# exercise: reshard
# says: in each file
# the size of a file is rounded down

import torch


def reshard(
    read,
    elements,
    old,
    new,
    rank,
    dtype,
):
    size, wanted = max(1, elements // old), -(-elements // new)
    out = torch.zeros(wanted, dtype=dtype)
    first, last = rank * wanted, min((rank + 1) * wanted, elements)
    for file in range(old):
        start = max(first, file * size)
        stop = min(last, (file + 1) * size)
        if start < stop:
            out[start - first : stop - first] = read(file, start - file * size, stop - file * size)
    return out
