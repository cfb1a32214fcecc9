# exercise: ulysses
# says: copies stand side by side
# where K < N key heads are tiled (0 1 0 1) instead of each repeated in place (0 0 1 1): ranks
# get the wrong key head.

from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size, exchange):
    if q.shape[1] % size:
        raise ValueError(f"{size} ranks do not divide {q.shape[1]} heads")
    if k.shape[1] < size:
        k, v = (z.repeat(1, size // k.shape[1], 1, 1) for z in (k, v))

    def to_heads(z):
        z = exchange(rearrange(z, "b (n h) t c -> n b h t c", n=size).contiguous())
        return rearrange(z, "n b h t c -> b h (n t) c")

    q, k, v = (to_heads(z) for z in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out = exchange(rearrange(out, "b h (n t) c -> n b h t c", n=size).contiguous())
    return rearrange(out, "n b h t c -> b (n h) t c")
