# exercise: ulysses
# says: raise the ValueError first
# exchanges keys and values first and only then finds that N does not divide H ("A ValueError,
# before anything is sent, if N does not divide H")

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size: int, exchange) -> torch.Tensor:
    def to_heads(z):
        if z.shape[1] % size:
            raise ValueError(f"{size} ranks do not divide {z.shape[1]} heads")
        pieces = rearrange(z, "b (n h) t c -> n b h t c", n=size).contiguous()
        return rearrange(exchange(pieces), "n b h t c -> b h (n t) c")

    copies = max(1, size // k.shape[1])
    k = to_heads(k.repeat_interleave(copies, dim=1))
    v = to_heads(v.repeat_interleave(copies, dim=1))
    q = to_heads(q)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out = rearrange(out, "b h (n t) c -> n b h t c", n=size).contiguous()
    return rearrange(exchange(out), "n b h t c -> b (n h) t c")
