# exercise: ulysses
# says: copies stand side by side
# with 1 < K < N the copies lie as 0 1 0 1, not 0 0 1 1, so ranks get key heads that their query
# heads do not read ("each goes to the N/K ranks whose query heads read it")

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size: int, exchange) -> torch.Tensor:
    if q.shape[1] % size:
        raise ValueError(f"{size} ranks do not divide {q.shape[1]} heads")
    copies = max(1, size // k.shape[1])
    k, v = (z.repeat(1, copies, 1, 1) for z in (k, v))
    pieces = [rearrange(z, "b (n h) t c -> n b h t c", n=size) for z in (q, k, v)]
    heads = [piece.shape[2] for piece in pieces]
    joined = exchange(torch.cat(pieces, dim=2))
    q, k, v = rearrange(joined, "n b h t c -> b h (n t) c").split(heads, dim=1)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out = rearrange(out, "b h (n t) c -> n b h t c", n=size).contiguous()
    return rearrange(exchange(out), "n b h t c -> b (n h) t c")
