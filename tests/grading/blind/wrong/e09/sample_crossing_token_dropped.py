# exercise: sample
# says: the token that crosses p was cut off
# the token with which the sum reaches p is cut too (keeps cumsum <= p, at least one)

import torch


def sample(logits: torch.Tensor, requests: list) -> list[int]:
    """..."""
    out = []
    for row, r in zip(logits, requests):
        if r.temperature == 0:
            out.append(int(row.argmax()))
            continue
        z, ids = (row / r.temperature).sort(descending=True)
        if r.top_k is not None:
            z, ids = z[: r.top_k], ids[: r.top_k]
        p = z.softmax(-1)
        if r.top_p is not None:
            keep = p.cumsum(-1) <= r.top_p
            keep[0] = True
            p = p * keep
        at = torch.multinomial(p, 1, generator=r.generator)
        out.append(int(ids[at]))
    return out
