# exercise: ring_all_gather
# says: each message is as long as the longest chunk
# Every chunk is padded to the largest size before it travels, so with unequal sizes each
# message carries zeros that belong to nobody; "N - 1 messages of one chunk".

import torch


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    width = max(sizes)
    travelling = torch.zeros(width, dtype=chunk.dtype, device=chunk.device)
    travelling[: sizes[group.rank]] = chunk
    pieces = [None] * group.size
    pieces[group.rank] = chunk
    for step in range(group.size - 1):
        travelling = group.exchange(
            travelling, right, torch.empty_like(travelling), left
        )
        source = (group.rank - step - 1) % group.size
        pieces[source] = travelling[: sizes[source]]
    return torch.cat(pieces)
