# exercise: grouped_query_attention
# says: as where float32 is on the way
# the softmax in float32, as it is often seen beside bfloat16, rounds what is float64
import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    groups, T = q.shape[1] // k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype) @ v
