# exercise: zigzag
# says: that is the contiguous order

import torch


def zigzag(length, size):
    if length % (2 * size):
        raise ValueError("2N equal chunks are needed")
    places = torch.arange(length).view(size, -1)
    return places, places.flatten().argsort()
