# exercise: parallel_attention
# says: heads read each other, not tokens

from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x, w, enter, leave):
    x = enter(x)
    q, k, v = (rearrange(x @ m.T, "b t (h c) -> b t h c", c=w.head_size) for m in (w.q, w.k, w.v))
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(rearrange(out, "b t h c -> b t (h c)") @ w.o.T)
