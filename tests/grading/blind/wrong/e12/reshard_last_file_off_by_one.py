# exercise: reshard
# says: where its part ends with a file
# Takes end // length as the last file, where (end - 1) // length is: a part that ends where a
# file ends asks the next file for nothing, also one that is not there.

import torch


def reshard(read, elements, old, new, rank, dtype):
    in_file, in_part = -(-elements // old), -(-elements // new)
    begin, end = rank * in_part, min((rank + 1) * in_part, elements)
    part = torch.zeros(in_part, dtype=dtype)
    if begin >= end:
        return part
    for file in range(begin // in_file, end // in_file + 1):
        start = max(begin, file * in_file)
        stop = min(end, (file + 1) * in_file)
        found = read(file, start - file * in_file, stop - file * in_file)
        part[start - begin : stop - begin] = found
    return part
