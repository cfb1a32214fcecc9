# exercise: zigzag
# says: joined[inverse] must be the text
# inverse is the order itself (places flattened), not its inverse permutation.

import torch


def zigzag(length, size):
    if length % (2 * size):
        raise ValueError(f"2 * {size} does not divide {length}")
    chunks = torch.arange(length).view(2 * size, -1)
    places = torch.cat((chunks[:size], chunks[size:].flip(0)), dim=1)
    return places, places.flatten()
