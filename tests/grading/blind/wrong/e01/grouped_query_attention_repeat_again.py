# exercise: grouped_query_attention
# says: neighbours share (repeat_interleave
# `repeat` lays the copies out as 0 1 0 1, so query head h reads head h % K; "Query head h reads
# key/value head h // (H/K)".

import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    H, T, C = q.shape[1:]
    k = k.repeat(1, H // k.shape[1], 1, 1)
    v = v.repeat(1, H // v.shape[1], 1, 1)
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-1, -2) / C**0.5).masked_fill(future, -torch.inf)
    return scores.softmax(dim=-1) @ v
