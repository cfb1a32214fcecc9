# exercise: sample
# says: it goes through what top-k has left
# top-p sums the probabilities of all tokens; after top-k they do not sum to 1 again

import torch


def sample(logits: torch.Tensor, requests: list) -> list[int]:
    told = []
    for row, request in zip(logits, requests):
        if request.temperature == 0:
            told.append(int(row.argmax()))
            continue
        p, order = (row / request.temperature).softmax(0).sort(descending=True)
        if request.top_k is not None:
            p = p[: request.top_k]
        if request.top_p is not None:
            p = p * (p.cumsum(0) - p < request.top_p)
        at = torch.multinomial(p, 1, generator=request.generator)
        told.append(int(order[at]))
    return told
