# exercise: pairwise_all_to_all
# says: in step s send to rank + s and receive from rank
# rank 0 sends all its chunks while the others wait, then rank 1, and so on: values and bytes
# are right, but the text says "In step s send to `rank + s` and receive from `rank - s`: every
# link is used once a step".

import torch


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    out = [torch.empty_like(chunk) for chunk in chunks]
    out[group.rank].copy_(chunks[group.rank])
    for source in range(group.size):
        if group.rank == source:
            for to in range(group.size):
                if to != source:
                    group.send(chunks[to], to)
        else:
            group.recv(out[source], source)
    return out
