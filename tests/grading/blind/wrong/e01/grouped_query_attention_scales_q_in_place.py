# exercise: grouped_query_attention
# says: make a new one
# Divides q by sqrt(C) in place to save a tensor; "q, k and v are left as they were".

import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    H, T, C = q.shape[1:]
    k = k.repeat_interleave(H // k.shape[1], dim=1)
    v = v.repeat_interleave(H // v.shape[1], dim=1)
    q /= C**0.5
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-1, -2)).masked_fill(future, -torch.inf)
    return scores.softmax(dim=-1) @ v
