# exercise: grouped_query_attention
# says: tokens look into the future

import torch


def grouped_query_attention(q, k, v):
    times, (T, C) = q.shape[1] // k.shape[1], q.shape[-2:]
    k, v = k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)

    return (q @ k.transpose(-2, -1) / C**0.5).softmax(dim=-1) @ v
