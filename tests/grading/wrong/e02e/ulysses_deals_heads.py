# exercise: ulysses
# says: heads were dealt out one by one

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size, exchange):
    if q.shape[1] % size:
        raise ValueError(f"{q.shape[1]} heads cannot be shared by {size} ranks")
    copies = max(1, size // k.shape[1])
    k, v = (z.repeat_interleave(copies, dim=1) for z in (k, v))
    pieces = [rearrange(z, "b (h n) t c -> n b h t c", n=size) for z in (q, k, v)]
    count = [piece.shape[2] for piece in pieces]
    parts = exchange(torch.cat(pieces, dim=2))
    q, k, v = rearrange(parts, "n b h t c -> b h (n t) c").split(count, dim=1)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    parts = exchange(rearrange(out, "b h (n t) c -> n b h t c", n=size))
    return rearrange(parts, "n b h t c -> b (h n) t c")
