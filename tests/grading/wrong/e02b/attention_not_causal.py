# exercise: parallel_attention
# says: attention is causal

from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x, w, enter, leave):
    x = enter(x)
    q, k, v = (rearrange(x @ m.T, "b t (h c) -> b h t c", c=w.head_size) for m in (w.q, w.k, w.v))
    out = scaled_dot_product_attention(q, k, v)
    return leave(rearrange(out, "b h t c -> b t (h c)") @ w.o.T)
