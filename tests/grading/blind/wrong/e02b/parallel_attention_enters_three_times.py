# exercise: parallel_attention
# says: and all matrices read that one copy
# x enters for q, for k and for v, so backward sends three sums; section 2: "each with one sum
# forward and one backward", hint: one enter for q, k and v together

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    q, k, v = (
        rearrange(enter(x) @ m.T, "b t (h c) -> b h t c", c=w.head_size)
        for m in (w.q, w.k, w.v)
    )
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(rearrange(out, "b h t c -> b t (h c)") @ w.o.T)
