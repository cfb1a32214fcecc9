# exercise: ulysses
# says: keys and values were repeated for all H query heads before they travelled
# repeats the key heads to all H query heads before sending, also where N divides K: right
# numbers, H/K times the bytes.

from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size, exchange):
    if q.shape[1] % size:
        raise ValueError(f"{size} ranks do not divide {q.shape[1]} heads")
    k, v = (z.repeat_interleave(q.shape[1] // z.shape[1], dim=1) for z in (k, v))

    def to_heads(z):
        z = exchange(rearrange(z, "b (n h) t c -> n b h t c", n=size).contiguous())
        return rearrange(z, "n b h t c -> b h (n t) c")

    q, k, v = (to_heads(z) for z in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    out = exchange(rearrange(out, "b h (n t) c -> n b h t c", n=size).contiguous())
    return rearrange(out, "n b h t c -> b (n h) t c")
