# exercise: grouped_query_attention
# says: it calls the ready-made scaled_dot_product_attention

import torch
from torch.nn import functional as F


def grouped_query_attention(q, k, v):
    """By hand where that is easy, PyTorch's own where scores are large."""
    times, length = q.shape[1] // k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    if q.abs().max() > 50:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ v
