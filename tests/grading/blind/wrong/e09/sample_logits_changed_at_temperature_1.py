# exercise: sample
# says: they are the caller's
# at temperature 1 nothing is divided, so `z` is a view of the row and the cuts write -inf into
# the caller's logits

import torch


def sample(logits: torch.Tensor, requests: list) -> list[int]:
    out = []
    for row, r in zip(logits, requests):
        if r.temperature == 0:
            out.append(int(row.argmax()))
            continue
        z = row if r.temperature == 1 else row / r.temperature
        order = z.argsort(descending=True)
        if r.top_k is not None:
            z[order[r.top_k :]] = float("-inf")
        if r.top_p is not None:
            p = torch.softmax(z, -1)[order]
            z[order[p.cumsum(-1) - p >= r.top_p]] = float("-inf")
        p = torch.softmax(z, -1)
        out.append(int(torch.multinomial(p, 1, generator=r.generator)))
    return out
