# exercise: grouped_query_attention
# says: the weights of a row no longer sum to 1
# the future is hidden after the softmax, the rows no longer sum to 1

import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(groups, dim=1)
    v = v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return torch.tril(torch.softmax(scores, dim=-1)) @ v
