# exercise: sample
# says: it goes through what top-k has left
# top-p is judged by the probabilities of the softmax over ALL tokens, top-k cuts beside it: not
# renormalised after top-k

import torch


def sample(logits: torch.Tensor, requests: list) -> list[int]:
    """..."""
    out = []
    for row, r in zip(logits, requests):
        if r.temperature == 0:
            out.append(int(row.argmax()))
            continue
        z, ids = (row / r.temperature).sort(descending=True)
        p = z.softmax(-1)
        if r.top_k is not None:
            p, ids = p[: r.top_k], ids[: r.top_k]
        if r.top_p is not None:
            keep = p.cumsum(-1) - p < r.top_p
            keep[0] = True
            p = p * keep
        at = torch.multinomial(p, 1, generator=r.generator)
        out.append(int(ids[at]))
    return out
