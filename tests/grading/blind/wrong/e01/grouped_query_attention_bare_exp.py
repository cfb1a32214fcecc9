# exercise: grouped_query_attention
# says: use softmax, not exp and a division
# writes the softmax as exp / sum without subtracting the maximum, so scores above about 88
# (also those of the masked future) overflow and give NaN, but the text asks for the "Softmax of
# q·k / √C", which is finite for any finite scores.

import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    B, H, T, C = q.shape
    share = H // k.shape[1]
    k = k.repeat_interleave(share, dim=1)
    v = v.repeat_interleave(share, dim=1)
    scores = q @ k.transpose(-2, -1) / C**0.5
    seen = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    weights = scores.exp() * seen
    return (weights / weights.sum(dim=-1, keepdim=True)) @ v
