# exercise: grouped_query_attention
# says: neighbours share (repeat_interleave
# k.repeat tiles 0 1 0 1, so query head h reads h % K and not h // (H / K)

import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    B, H, T, C = q.shape
    groups = H // k.shape[1]
    k = k.repeat(1, groups, 1, 1)
    v = v.repeat(1, groups, 1, 1)
    scores = q @ k.transpose(-2, -1) / C**0.5
    mask = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
