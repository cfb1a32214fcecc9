# exercise: ring_shift
# says: was changed by a later call
# all calls of one shape return the same buffer, so a second call overwrites the first result,
# and shifting a result once more overwrites its own input, against "`tensor` is left as it
# was".

import torch

_places = {}


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    key = (tuple(tensor.shape), tensor.dtype, tensor.device)
    if key not in _places:
        _places[key] = torch.empty_like(tensor)
    return group.exchange(tensor, right, _places[key], left)
