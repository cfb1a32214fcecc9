# exercise: zigzag
# says: expected a ValueError
# raises only where N does not divide the length; 6 tokens on 2 ranks lose two tokens silently
# ("A length that 2N does not divide raises a ValueError")

import torch


def zigzag(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    if length % size:
        raise ValueError(f"{size} ranks do not divide {length} tokens")
    half = length // (2 * size)
    rows = []
    for rank in range(size):
        late = 2 * size - 1 - rank
        early_tokens = torch.arange(rank * half, (rank + 1) * half)
        late_tokens = torch.arange(late * half, (late + 1) * half)
        rows.append(torch.cat([early_tokens, late_tokens]))
    places = torch.stack(rows)
    return places, places.flatten().argsort()
