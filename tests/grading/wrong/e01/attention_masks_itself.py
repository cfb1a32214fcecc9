# exercise: grouped_query_attention
# says: may token 0 see itself

import torch


def grouped_query_attention(q, k, v):
    times, (T, C) = q.shape[1] // k.shape[1], q.shape[-2:]
    k, v = k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)
    future = torch.ones(T, T, dtype=torch.bool).triu(0)
    scores = (q @ k.transpose(-2, -1) / C**0.5).masked_fill(future, -torch.inf)
    return scores.softmax(dim=-1) @ v
