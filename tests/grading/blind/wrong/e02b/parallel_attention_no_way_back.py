# exercise: parallel_attention
# says: was reshaped as it lies
# reshapes (B, heads, T, C) to (B, T, heads*C) without exchanging heads and T, so heads and
# tokens mix wherever a rank has more than one head (docstring: "(B, T, D) -> (B, T, D)", a head
# reads and makes its own features)

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    q, k, v = (
        rearrange(x @ m.T, "b t (h c) -> b h t c", c=w.head_size)
        for m in (w.q, w.k, w.v)
    )
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    out = out.reshape(x.shape[0], x.shape[1], -1)
    return leave(out @ w.o.T)
