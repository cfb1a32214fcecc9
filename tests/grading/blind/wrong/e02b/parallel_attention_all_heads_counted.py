# exercise: parallel_attention
# says: H/N heads of `w.head_size` each
# The number of heads comes from the whole width (D / head_size), not from this rank's D/N:
# heads are N times too thin.

import torch
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    B, T, D = x.shape
    heads = D // w.head_size
    x = enter(x)
    q, k, v = ((x @ m.T).view(B, T, heads, -1).transpose(1, 2) for m in (w.q, w.k, w.v))
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(out.transpose(1, 2).reshape(B, T, -1) @ w.o.T)
