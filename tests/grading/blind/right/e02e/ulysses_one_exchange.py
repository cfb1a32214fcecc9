# right: q, k and v go together in one exchange, by reshape and cat instead of einops.
import torch
from torch.nn.functional import scaled_dot_product_attention


def ulysses(q, k, v, size, exchange):
    batch, heads, tokens, width = q.shape
    if heads % size != 0:
        raise ValueError("the number of ranks must divide the number of query heads")
    copies = max(1, size // k.shape[1])
    k = k.repeat_interleave(copies, dim=1)
    v = v.repeat_interleave(copies, dim=1)
    pieces = [z.reshape(batch, size, -1, tokens, width) for z in (q, k, v)]
    counts = [piece.shape[2] for piece in pieces]
    packed = torch.cat(pieces, dim=2).transpose(0, 1).contiguous()
    arrived = exchange(packed)  # (N, B, heads of q, k and v, T/N, C)
    whole = arrived.permute(1, 2, 0, 3, 4).reshape(batch, sum(counts), -1, width)
    q, k, v = whole.split(counts, dim=1)
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out = out.reshape(batch, -1, size, tokens, width).permute(2, 0, 1, 3, 4)
    back = exchange(out.contiguous())  # (N, B, H/N, T/N, C)
    return back.transpose(0, 1).reshape(batch, heads, tokens, width)
