# exercise: ulysses
# says: keys and values were repeated for all H query heads before they travelled
# repeats keys and values to all H heads before they are sent, right values but far more bytes
# ("Of K < N key heads, each goes to the N/K ranks whose query heads read it"; "(N-1)/N·(H +
# max(K, N))/K each way")

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size: int, exchange) -> torch.Tensor:
    if q.shape[1] % size:
        raise ValueError(f"{size} ranks do not divide {q.shape[1]} heads")
    k, v = (z.repeat_interleave(q.shape[1] // z.shape[1], dim=1) for z in (k, v))
    pieces = [rearrange(z, "b (n h) t c -> n b h t c", n=size) for z in (q, k, v)]
    heads = [piece.shape[2] for piece in pieces]
    joined = exchange(torch.cat(pieces, dim=2))
    q, k, v = rearrange(joined, "n b h t c -> b h (n t) c").split(heads, dim=1)
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    out = rearrange(out, "b h (n t) c -> n b h t c", n=size).contiguous()
    return rearrange(exchange(out), "n b h t c -> b (n h) t c")
