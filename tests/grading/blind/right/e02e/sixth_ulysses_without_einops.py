# exercise: ulysses
# no einops: unflatten, movedim and flatten, three exchanges of pieces that are not contiguous, key
# heads copied by an index
import torch
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size, exchange):
    if q.shape[1] % size:
        raise ValueError(f"{size} ranks do not divide {q.shape[1]} heads")

    def to_heads(z):
        pieces = z.unflatten(1, (size, -1)).movedim(1, 0)  # (n, b, h, t, c), a view
        return exchange(pieces).permute(1, 2, 0, 3, 4).flatten(2, 3)

    def to_tokens(z):
        pieces = z.unflatten(2, (size, -1)).movedim(2, 0)
        return exchange(pieces).movedim(0, 1).flatten(1, 2)

    K = k.shape[1]
    wanted = max(K, size)
    which = torch.arange(wanted, device=k.device) * K // wanted
    k, v = k.index_select(1, which), v.index_select(1, which)
    q, k, v = map(to_heads, (q, k, v))
    return to_tokens(
        scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    )
