# exercise: ulysses
# says: expected
# the answers' heads are put back with the ranks varying fastest, right where each rank has one
# head only; the docstring says "Rank r takes heads r·H/N to (r+1)·H/N".

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size, exchange):
    H, K = q.shape[1], k.shape[1]
    if H % size:
        raise ValueError(f"{size} ranks do not divide {H} heads")
    copies = max(1, size // K)
    k, v = (z.repeat_interleave(copies, dim=1) for z in (k, v))
    pieces = [rearrange(z, "b (n h) t c -> n b h t c", n=size) for z in (q, k, v)]
    heads = [piece.shape[2] for piece in pieces]
    whole = rearrange(exchange(torch.cat(pieces, dim=2)), "n b h t c -> b h (n t) c")
    q, k, v = whole.split(heads, dim=1)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    back = exchange(rearrange(out, "b h (n t) c -> n b h t c", n=size).contiguous())
    return rearrange(back, "n b h t c -> b (h n) t c")
