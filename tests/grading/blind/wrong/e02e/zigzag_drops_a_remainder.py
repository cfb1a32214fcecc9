# exercise: zigzag
# says: expected a ValueError
# only asks whether N divides the length, so with N but not 2N dividing it tokens are lost
# silently; the docstring says "A length that 2N does not divide raises a ValueError".

import torch


def zigzag(length, size):
    if length % size:
        raise ValueError(f"{size} ranks do not divide {length} tokens")
    half = length // (2 * size)
    rows = []
    for rank in range(size):
        late = 2 * size - 1 - rank
        early_chunk = torch.arange(rank * half, (rank + 1) * half)
        late_chunk = torch.arange(late * half, (late + 1) * half)
        rows.append(torch.cat((early_chunk, late_chunk)))
    places = torch.stack(rows)
    return places, places.flatten().argsort()
