# exercise: parallel_attention
# says: read every shape after x entered
# reads T from x before it enters, so it breaks where `enter` gathers tokens ("Attention needs
# no new code: parallel_attention(x, w, tp.all_gather, tp.reduce_scatter)")

import torch
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    B, T, _ = x.shape
    x = enter(x)
    q = (x @ w.q.T).view(B, T, -1, w.head_size).transpose(1, 2)
    k = (x @ w.k.T).view(B, T, -1, w.head_size).transpose(1, 2)
    v = (x @ w.v.T).view(B, T, -1, w.head_size).transpose(1, 2)
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    out = out.transpose(1, 2).reshape(B, T, -1)
    return leave(out @ w.o.T)
