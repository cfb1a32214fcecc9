# right: no repeat, queries reshaped to (B, K, H/K, T, C) and broadcast; softmax written with logsumexp
import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    K, T = k.shape[1], q.shape[2]
    grouped = q.unflatten(1, (K, -1)) * q.shape[-1] ** -0.5
    scores = grouped @ k.unsqueeze(2).mT
    ahead = torch.arange(T, device=q.device)
    scores = torch.where(ahead[:, None] >= ahead, scores, -torch.inf)
    weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    return (weights @ v.unsqueeze(2)).flatten(1, 2)
