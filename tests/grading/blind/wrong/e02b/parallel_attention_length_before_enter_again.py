# exercise: parallel_attention
# says: read every shape after x entered
# the number of tokens is read before `enter`, so with `tp.all_gather`, which makes T of T/N,
# the heads are cut wrongly: "`enter` and `leave` as above", "later others, with which x and the
# output have fewer tokens than what is in between"

import torch
from torch.nn.functional import scaled_dot_product_attention


def parallel_attention(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    B, T, _ = x.shape
    x = enter(x)
    q, k, v = (
        (x @ m.T).view(B, T, -1, w.head_size).transpose(1, 2) for m in (w.q, w.k, w.v)
    )
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(out.transpose(1, 2).reshape(B, T, -1) @ w.o.T)
