# exercise: parallel_attention
# says: heads stand one after the other, (h c), where they are split and where they are joined
# the heads are split as (h c) and joined as (c h)

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    q, k, v = (rearrange(x @ m.T, "b t (h c) -> b h t c", c=w.head_size) for m in (w.q, w.k, w.v))
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(rearrange(out, "b h t c -> b t (c h)") @ w.o.T)
