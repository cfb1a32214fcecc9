# exercise: zigzag
# says: expected
# the late chunk's tokens are in falling order, since the text and not the order of chunks is
# turned round; right only with one token a chunk ("an early and a late one [chunk], r and
# 2N-1-r"; "any two runs of tokens a rank")

import torch


def zigzag(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    if length % (2 * size):
        raise ValueError(f"{length} tokens do not make {2 * size} equal chunks")
    text = torch.arange(length)
    early = text.view(2 * size, -1)[:size]
    late = text.flip(0).view(2 * size, -1)[:size]
    places = torch.cat([early, late], dim=1)
    return places, places.flatten().argsort()
