# exercise: zigzag
# says: joined[inverse] must be the text
# inverse is the order itself (the places side by side) instead of its inverse permutation

import torch


def zigzag(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    if length % (2 * size):
        raise ValueError(f"{2 * size} does not divide {length}")
    chunks = torch.arange(length).view(2 * size, -1)
    early, late = chunks[:size], chunks[size:].flip(0)
    places = torch.cat([early, late], dim=1)
    return places, places.flatten()
