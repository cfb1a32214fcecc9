# exercise: zigzag
# says: equal chunks are needed

import torch


def zigzag(length, size):
    chunks = torch.arange(length - length % (2 * size)).view(2 * size, -1)
    places = torch.cat([chunks[:size], chunks[size:].flip(0)], dim=1)
    return places, places.flatten().argsort()
