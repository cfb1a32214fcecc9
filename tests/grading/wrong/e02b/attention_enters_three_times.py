# exercise: parallel_attention
# says: x enters once, and all matrices read that one copy

from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x, w, enter, leave):
    q, k, v = (
        rearrange(enter(x) @ m.T, "b t (h c) -> b h t c", c=w.head_size) for m in (w.q, w.k, w.v)
    )
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(rearrange(out, "b h t c -> b t (h c)") @ w.o.T)
