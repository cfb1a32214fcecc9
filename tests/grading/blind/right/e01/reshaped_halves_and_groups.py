# right: rotate swaps the halves by a reshape and a flip, attention keeps k and v as they are and gives q a dimension of groups instead of repeating them.
import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    half = x.shape[-1] // 2
    other_half = x.unflatten(-1, (2, half)).flip(-2).flatten(-2)
    return other_half * turns.sin + x * turns.cos


def grouped_query_attention(q, k, v) -> torch.Tensor:
    B, H, T, C = q.shape
    K = k.shape[1]
    grouped = q.reshape(B, K, H // K, T, C) * C**-0.5
    scores = torch.matmul(grouped, k.unsqueeze(2).mT)
    position = torch.arange(T, device=q.device)
    visible = position[None, :] <= position[:, None]
    weights = torch.where(visible, scores, -torch.inf).softmax(dim=-1)
    return torch.matmul(weights, v.unsqueeze(2)).reshape(B, H, T, C)
