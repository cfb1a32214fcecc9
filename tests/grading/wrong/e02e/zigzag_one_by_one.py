# exercise: zigzag
# says: a rank holds two *runs*

import torch


def zigzag(length, size):
    if length % (2 * size):
        raise ValueError("2N equal chunks are needed")
    places = torch.arange(length).view(-1, size).T.contiguous()
    return places, places.flatten().argsort()
