# exercise: zigzag
# says: those are the chunks' numbers

import torch


def zigzag(length, size):
    if length % (2 * size):
        raise ValueError("2N equal chunks are needed")
    places = torch.tensor([[rank, 2 * size - 1 - rank] for rank in range(size)])
    return places, places.flatten().argsort()
