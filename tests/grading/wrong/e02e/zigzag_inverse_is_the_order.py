# exercise: zigzag
# says: applies it twice

import torch


def zigzag(length, size):
    if length % (2 * size):
        raise ValueError("2N equal chunks are needed")
    chunks = torch.arange(length).view(2 * size, -1)
    places = torch.cat([chunks[:size], chunks[size:].flip(0)], dim=1)
    return places, places.flatten()
