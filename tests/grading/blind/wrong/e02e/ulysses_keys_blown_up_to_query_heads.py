# exercise: ulysses
# says: as if keys and values were repeated for all H query heads
# key heads are always repeated up to the query heads before they are sent: H heads of keys
# travel in place of max(K, N)

import torch
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size: int, exchange) -> torch.Tensor:
    if q.shape[1] % size:
        raise ValueError(f"{size} ranks do not divide {q.shape[1]} heads")
    copies = q.shape[1] // k.shape[1]
    k, v = (z.repeat_interleave(copies, dim=1) for z in (k, v))

    def by_heads(z):
        pieces = z.unflatten(1, (size, -1)).movedim(1, 0)
        return exchange(pieces).movedim(0, 2).flatten(2, 3)

    q, k, v = by_heads(q), by_heads(k), by_heads(v)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    pieces = out.unflatten(2, (size, -1)).movedim(2, 0)
    return exchange(pieces).movedim(0, 1).flatten(1, 2)
