# exercise: pairwise_all_to_all
# says: nothing moved

import torch


def pairwise_all_to_all(group, chunks, shapes=None):
    """The right messages, of the right sizes, with nothing in them."""
    n, rank = group.size, group.rank
    for step in range(1, n):
        to, source = (rank + step) % n, (rank - step) % n
        empty = torch.zeros_like(chunks[to])
        group.exchange(empty, to, torch.empty_like(chunks[source]), source)
    return [chunk.clone() for chunk in chunks]
