# exercise: ring_reduce_scatter
# says: that is rounded to float32
# Whatever the dtype, the parts travel and are added as float32 and are cast back at the end, so
# float64 and large int64 sums lose digits and a bfloat16 message is twice as large; "Chunk
# `rank` of the sum over ranks", "messages of one chunk".

import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    travelling = chunks[(group.rank - 1) % group.size].float()
    for step in range(group.size - 1):
        own = chunks[(group.rank - 2 - step) % group.size].float()
        travelling = group.exchange(travelling, right, torch.empty_like(own), left) + own
    return travelling.to(tensor.dtype)
