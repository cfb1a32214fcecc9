# exercise: grouped_query_attention
# says: the future took part in the softmax
# The softmax runs over all tokens and the future is cut out afterwards and renormalized, so a
# large score in the future drives the allowed weights to 0 and the row to 0/0 = NaN; "Token i
# sees tokens j <= i".

import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    H, C = q.shape[1], q.shape[-1]
    k = k.repeat_interleave(H // k.shape[1], dim=1)
    v = v.repeat_interleave(H // v.shape[1], dim=1)
    weights = (q @ k.transpose(-1, -2) / C**0.5).softmax(dim=-1).tril()
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights @ v
