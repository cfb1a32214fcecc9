# exercise: parallel_attention
# says: divided by the root of this rank's D/N numbers
# scores are scaled by the root of this rank's D/N features, right only for one head a rank; the
# text: heads "of w.head_size numbers", with scaled_dot_product_attention(q, k, v,
# is_causal=True) as it stands

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    q, k, v = (
        rearrange(x @ m.T, "b t (h c) -> b h t c", c=w.head_size)
        for m in (w.q, w.k, w.v)
    )
    scale = w.q.shape[0] ** -0.5
    out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return leave(rearrange(out, "b h t c -> b t (h c)") @ w.o.T)
