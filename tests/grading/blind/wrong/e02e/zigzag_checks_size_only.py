# exercise: zigzag
# says: expected a ValueError
# checks that N divides the length, not 2N: an odd number of tokens a rank loses the text's last
# tokens.

import torch


def zigzag(length, size):
    if length % size:
        raise ValueError(f"{size} does not divide {length}")
    half = length // (2 * size)
    rows = []
    for rank in range(size):
        early = torch.arange(rank * half, (rank + 1) * half)
        late = 2 * size - 1 - rank
        rows.append(torch.cat((early, torch.arange(late * half, (late + 1) * half))))
    places = torch.stack(rows)
    return places, torch.argsort(places.flatten())
