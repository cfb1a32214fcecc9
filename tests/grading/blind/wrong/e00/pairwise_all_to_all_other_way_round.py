# exercise: pairwise_all_to_all
# says: in step s send to rank + s and receive from rank
# In step s it sends to rank - s and receives from rank + s; the text: "send to `rank + s` and
# receive from `rank - s`, in this order".

import torch


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    out = [torch.empty_like(chunk) for chunk in chunks]
    out[group.rank].copy_(chunks[group.rank])
    for step in range(1, group.size):
        to, source = (group.rank - step) % group.size, (group.rank + step) % group.size
        group.exchange(chunks[to], to, out[source], source)
    return out
