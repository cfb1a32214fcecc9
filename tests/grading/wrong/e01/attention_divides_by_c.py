# exercise: grouped_query_attention
# says: it must be sqrt(C)

import torch


def grouped_query_attention(q, k, v):
    times, (T, C) = q.shape[1] // k.shape[1], q.shape[-2:]
    k, v = k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = q @ k.transpose(-2, -1) / C
    return scores.masked_fill(future, -torch.inf).softmax(dim=-1) @ v
