# exercise: ulysses
# says: keys and values have changed places
# what arrives is taken for q, v, k, and was sent as q, k, v
import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size, exchange):
    if q.shape[1] % size:
        raise ValueError(f"{size} ranks do not divide {q.shape[1]} heads")
    copies = max(1, size // k.shape[1])
    k, v = (z.repeat_interleave(copies, dim=1) for z in (k, v))
    pieces = [rearrange(z, "b (n h) t c -> n b h t c", n=size) for z in (q, k, v)]
    heads = [piece.shape[2] for piece in pieces]
    whole = rearrange(exchange(torch.cat(pieces, dim=2)), "n b h t c -> b h (n t) c")
    q, v, k = whole.split(heads, dim=1)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    back = exchange(rearrange(out, "b h (n t) c -> n b h t c", n=size).contiguous())
    return rearrange(back, "n b h t c -> b (n h) t c")
