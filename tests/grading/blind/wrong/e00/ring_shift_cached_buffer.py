# exercise: ring_shift
# says: was changed by a later call
# The place for what arrives is kept per shape and dtype and handed out again, so a second call
# overwrites the first result; section 1: "what you return is made anew in each call".

import torch

places = {}


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    key = (tuple(tensor.shape), tensor.dtype)
    if key not in places:  # allocating is slow: do it once
        places[key] = torch.empty_like(tensor)
    group.exchange(tensor, right, places[key], left)
    return places[key]
