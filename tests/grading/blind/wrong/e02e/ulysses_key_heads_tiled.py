# exercise: ulysses
# says: copies stand side by side
# fewer key heads than ranks are tiled (0 1 0 1) instead of repeated side by side (0 0 1 1):
# ranks get the key head of others

import torch
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size: int, exchange) -> torch.Tensor:
    if q.shape[1] % size:
        raise ValueError(f"{size} ranks do not divide {q.shape[1]} heads")
    if k.shape[1] < size:
        copies = size // k.shape[1]
        k, v = (z.repeat(1, copies, 1, 1) for z in (k, v))

    def by_heads(z):
        pieces = z.unflatten(1, (size, -1)).movedim(1, 0)
        return exchange(pieces).movedim(0, 2).flatten(2, 3)

    q, k, v = by_heads(q), by_heads(k), by_heads(v)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    pieces = out.unflatten(2, (size, -1)).movedim(2, 0)
    return exchange(pieces).movedim(0, 1).flatten(1, 2)
