# exercise: parallel_attention
# says: where they are split and where they are joined
# the rows of q, k, v are read as (c h), the heads innermost, instead of one head after another,
# (h c); in and out alike

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    q, k, v = (
        rearrange(x @ m.T, "b t (c h) -> b h t c", c=w.head_size)
        for m in (w.q, w.k, w.v)
    )
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(rearrange(out, "b h t c -> b t (c h)") @ w.o.T)
