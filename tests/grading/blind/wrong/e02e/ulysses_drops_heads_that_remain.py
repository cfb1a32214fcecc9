# exercise: ulysses
# says: raise the ValueError first
# where N does not divide H, the heads of the remainder are dropped silently; the docstring says
# "ValueError if N does not divide H".

import torch
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size, exchange):
    copies = max(1, size // k.shape[1])
    k, v = (z.repeat_interleave(copies, dim=1) for z in (k, v))
    each = [z.shape[1] // size for z in (q, k, v)]  # heads a rank
    pieces = [
        torch.stack([z[:, r * h : (r + 1) * h] for r in range(size)])
        for z, h in zip((q, k, v), each)
    ]
    arrived = exchange(torch.cat(pieces, dim=2))  # (N, B, heads, T/N, C)
    whole = torch.cat(arrived.unbind(0), dim=2)  # (B, heads, T, C)
    out = scaled_dot_product_attention(
        *whole.split(each, dim=1), is_causal=True, enable_gqa=True
    )
    back = exchange(torch.stack(out.chunk(size, dim=2)))
    return torch.cat(back.unbind(0), dim=1)
