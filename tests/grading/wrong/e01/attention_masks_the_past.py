# exercise: grouped_query_attention
# says: tokens see the future and not the past

import torch


def grouped_query_attention(q, k, v):
    times, (T, C) = q.shape[1] // k.shape[1], q.shape[-2:]
    k, v = k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)
    past = torch.ones(T, T, dtype=torch.bool).tril(-1)
    scores = (q @ k.transpose(-2, -1) / C**0.5).masked_fill(past, -torch.inf)
    return scores.softmax(dim=-1) @ v
