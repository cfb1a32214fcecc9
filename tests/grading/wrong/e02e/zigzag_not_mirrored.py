# exercise: zigzag
# says: Turn the late chunks round

import torch


def zigzag(length, size):
    if length % (2 * size):
        raise ValueError("2N equal chunks are needed")
    chunks = torch.arange(length).view(2 * size, -1)
    places = torch.cat([chunks[:size], chunks[size:]], dim=1)
    return places, places.flatten().argsort()
