import torch
import torch.nn.functional as F


def parallel_attention(x, w, enter, leave):
    """q, k and v from one matrix, cut apart; the mask given, not asked for."""
    qkv = enter(x) @ torch.cat([w.q, w.k, w.v]).T
    B, T, _ = qkv.shape
    q, k, v = qkv.view(B, T, 3, -1, w.head_size).permute(2, 0, 3, 1, 4)
    earlier = torch.ones(T, T, dtype=torch.bool).tril()
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=earlier)
    return leave(F.linear(out.transpose(1, 2).reshape(B, T, -1), w.o))
