# exercise: zigzag
# says: expected a ValueError
# It asks whether 2 and N divide the length, not whether 2N does, so for an even N (length 12 on
# 4 ranks) no ValueError comes but a RuntimeError of view; "A length that 2N does not divide
# raises a ValueError".

import torch


def zigzag(length, size):
    if length % 2 or length % size:
        raise ValueError(f"{length} tokens do not make two chunks for each of {size} ranks")
    chunks = torch.arange(length).view(2 * size, -1)
    places = torch.cat((chunks[:size], chunks[size:].flip(0)), dim=1)
    return places, places.flatten().argsort()
