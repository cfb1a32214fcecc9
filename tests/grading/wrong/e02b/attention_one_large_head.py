# exercise: parallel_attention
# says: that is one head of all this rank's features

from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x, w, enter, leave):
    x = enter(x)
    q, k, v = ((x @ m.T)[:, None] for m in (w.q, w.k, w.v))
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(out[:, 0] @ w.o.T)
