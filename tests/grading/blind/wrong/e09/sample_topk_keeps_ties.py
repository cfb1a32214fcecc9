# exercise: sample
# says: A threshold at the k-th logit keeps them all
# top-k is a threshold at the k-th logit, so tokens that tie with it stay too and more than k
# are kept

import torch


def sample(logits: torch.Tensor, requests: list) -> list[int]:
    out = []
    for row, r in zip(logits, requests):
        if r.temperature == 0:
            out.append(int(row.argmax()))
            continue
        z = row / r.temperature
        if r.top_k is not None:
            kth = z.topk(min(r.top_k, len(z))).values[-1]
            z = z.masked_fill(z < kth, float("-inf"))
        probs, ids = torch.softmax(z, -1).sort(descending=True)
        if r.top_p is not None:
            probs = probs * (probs.cumsum(-1) - probs < r.top_p)
        out.append(int(ids[torch.multinomial(probs, 1, generator=r.generator)]))
    return out
