# exercise: ulysses
# says: raise the ValueError first
# k and v are exchanged before H is tested, so with H = 6, K = 2, N = 4 the ValueError comes
# after two all-to-alls; the docstring says "A ValueError, before anything is sent, if N does
# not divide H".

from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size, exchange):
    def all_tokens(z):
        pieces = rearrange(z, "b (n h) t c -> n b h t c", n=size)
        return rearrange(exchange(pieces), "n b h t c -> b h (n t) c")

    copies = max(1, size // k.shape[1])
    k, v = (all_tokens(z.repeat_interleave(copies, dim=1)) for z in (k, v))
    if q.shape[1] % size:
        raise ValueError(f"{q.shape[1]} heads on {size} ranks")
    q = all_tokens(q)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    back = exchange(rearrange(out, "b h (n t) c -> n b h t c", n=size))
    return rearrange(back, "n b h t c -> b (n h) t c")
