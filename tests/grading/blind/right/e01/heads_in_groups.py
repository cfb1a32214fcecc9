# right: rotate views C as (2, C/2) and flips the two halves; attention keeps k and v at K heads and gives q a group dimension
import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    other = x.unflatten(-1, (2, x.shape[-1] // 2)).flip(-2).flatten(-2)
    return torch.addcmul(x * turns.cos, other, turns.sin)


def grouped_query_attention(q, k, v) -> torch.Tensor:
    B, H, T, C = q.shape
    K = k.shape[1]
    grouped = q.reshape(B, K, H // K, T, C)
    at = torch.arange(T, device=q.device)
    scores = grouped @ k.unsqueeze(2).transpose(-2, -1) * C**-0.5
    scores = torch.where(at[:, None] >= at, scores, float("-inf"))
    return (torch.softmax(scores, dim=-1) @ v.unsqueeze(2)).reshape(B, H, T, C)
