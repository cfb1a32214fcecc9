# exercise: pairwise_all_to_all
# says: in step s send to rank + s and receive from rank - s

import torch


def pairwise_all_to_all(group, chunks):
    """Everything under way at the same time, then one wait for all."""
    result = [piece.clone() for piece in chunks]
    others = [rank for rank in range(group.size) if rank != group.rank]
    works = [group.irecv(result[rank], rank) for rank in others]
    works += [group.isend(chunks[rank], rank) for rank in others]
    for work in works:
        work.wait()
    return result
