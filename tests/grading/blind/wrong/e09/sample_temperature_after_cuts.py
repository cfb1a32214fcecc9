# exercise: sample
# says: top-p counts probabilities that it has made
# the cuts are made on the untempered probabilities, the temperature comes last

import torch


def sample(logits: torch.Tensor, requests: list) -> list[int]:
    told = []
    for row, request in zip(logits, requests):
        if request.temperature == 0:
            told.append(int(row.argmax()))
            continue
        z, order = row.sort(descending=True)
        if request.top_k is not None:
            z = z[: request.top_k]
        if request.top_p is not None:
            p = z.softmax(0)
            z = z.masked_fill(p.cumsum(0) - p >= request.top_p, -torch.inf)
        p = (z / request.temperature).softmax(0)
        at = torch.multinomial(p, 1, generator=request.generator)
        told.append(int(order[at]))
    return told
