# exercise: grouped_query_attention
# says: neighbours share (repeat_interleave
# copies the key/value heads as 0 1 0 1 (repeat), but "Query head h reads key/value head h //
# (H/K)", that is 0 0 1 1; right only for K = 1 or K = H.

import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    B, H, T, C = q.shape
    share = H // k.shape[1]
    k, v = k.repeat(1, share, 1, 1), v.repeat(1, share, 1, 1)
    scores = q @ k.transpose(-2, -1) / C**0.5
    future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(dim=-1) @ v
