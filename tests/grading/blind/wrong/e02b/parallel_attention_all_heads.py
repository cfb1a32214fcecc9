# exercise: parallel_attention
# says: H/N heads of `w.head_size` each
# cuts this rank's D/N features into the D/head_size heads of the whole layer, so on N ranks a
# head has head_size/N numbers ("each rank on its own heads of w.head_size numbers")

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    heads = x.shape[-1] // w.head_size
    q, k, v = (
        rearrange(x @ m.T, "b t (h c) -> b h t c", h=heads) for m in (w.q, w.k, w.v)
    )
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(rearrange(out, "b h t c -> b t (h c)") @ w.o.T)
