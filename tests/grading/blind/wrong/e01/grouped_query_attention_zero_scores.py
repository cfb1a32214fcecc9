# exercise: grouped_query_attention
# says: a score of 0 still weighs exp(0)
# the future's scores are set to 0 before the softmax (tril), not to -inf: it keeps weight
# exp(0)

import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(groups, dim=1)
    v = v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return torch.softmax(torch.tril(scores), dim=-1) @ v
