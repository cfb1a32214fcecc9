# exercise: grouped_query_attention
# says: may token 0 see itself
# triu without diagonal=1 hides the token itself: the first row is all -inf, nan

import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(groups, dim=1)
    v = v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    mask = torch.ones_like(scores, dtype=torch.bool).triu()
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
