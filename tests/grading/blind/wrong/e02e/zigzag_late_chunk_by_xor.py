# exercise: zigzag
# says: which r XOR (2N-1) is only where
# the late chunk is r XOR (2N-1), which is 2N-1-r only where N is a power of two; the text
# "gives rank r an early and a late one, r and 2N-1-r", for any N.

import torch


def zigzag(length, size):
    if length % (2 * size):
        raise ValueError(f"{2 * size} chunks do not divide {length} tokens")
    half = length // (2 * size)
    early = torch.arange(size)
    late = early ^ (2 * size - 1)  # turns all bits round: the mirror image
    starts = torch.stack((early, late), dim=1) * half  # (N, 2)
    places = (starts[..., None] + torch.arange(half)).flatten(1)
    return places, places.flatten().argsort()
