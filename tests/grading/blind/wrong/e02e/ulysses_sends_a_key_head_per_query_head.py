# exercise: ulysses
# says: keys and values were repeated for all H query heads before they travelled
# repeats the keys and values to H heads before they are sent, so 3·H heads travel instead of H
# + 2·max(K, N); the text: "Of K < N key heads, each goes to the N/K ranks", and "(N-1)/N·(H +
# max(K, N))/K each way".

import torch
from einops import rearrange
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size, exchange):
    H, K = q.shape[1], k.shape[1]
    if H % size:
        raise ValueError(f"{size} ranks do not divide {H} heads")
    k, v = (z.repeat_interleave(H // K, dim=1) for z in (k, v))
    pieces = [rearrange(z, "b (n h) t c -> n b h t c", n=size) for z in (q, k, v)]
    heads = [piece.shape[2] for piece in pieces]
    whole = rearrange(exchange(torch.cat(pieces, dim=2)), "n b h t c -> b h (n t) c")
    q, k, v = whole.split(heads, dim=1)
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    back = exchange(rearrange(out, "b h (n t) c -> n b h t c", n=size).contiguous())
    return rearrange(back, "n b h t c -> b (n h) t c")
