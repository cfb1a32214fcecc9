# exercise: sample
# says: top-p was counted before top-k
# top-p sums the probabilities of all V tokens; after top-k they do not sum to 1 again, so too
# many tokens stay

import torch


def sample(logits: torch.Tensor, requests: list) -> list[int]:
    out = []
    for row, r in zip(logits, requests):
        if r.temperature == 0:
            out.append(int(row.argmax()))
            continue
        probs, ids = torch.softmax(row / r.temperature, -1).sort(descending=True)
        if r.top_k is not None:
            probs, ids = probs[: r.top_k], ids[: r.top_k]
        if r.top_p is not None:
            before = probs.cumsum(-1) - probs
            probs = torch.where(before < r.top_p, probs, 0.0)
        out.append(int(ids[torch.multinomial(probs, 1, generator=r.generator)]))
    return out
