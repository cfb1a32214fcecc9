# exercise: ulysses
# says: keys and values were repeated for all H query heads before they travelled
# Keys and values are repeated to all H query heads before they are sent, 2·H heads instead of
# 2·max(K, N); the text sends each key head only "to the N/K ranks whose query heads read it",
# (N-1)/N·(H + max(K, N))/K in all.

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size, exchange):
    if q.shape[1] % size:
        raise ValueError(f"{q.shape[1]} heads on {size} ranks")
    each = q.shape[1] // k.shape[1]
    k, v = (z.repeat_interleave(each, dim=1) for z in (k, v))
    pieces = rearrange(torch.stack((q, k, v)), "s b (n h) t c -> n s b h t c", n=size)
    q, k, v = rearrange(exchange(pieces), "n s b h t c -> s b h (n t) c")
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    back = exchange(rearrange(out, "b h (n t) c -> n b h t c", n=size))
    return rearrange(back, "n b h t c -> b (n h) t c")
