# exercise: grouped_query_attention
# differs: no copies of k and v: query heads are viewed as (K, H/K) and einsum lets the key head
#   broadcast; an added mask from positions
import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    heads, length, width = q.shape[-3:]
    grouped = q.unflatten(1, (k.shape[1], -1)) * width**-0.5
    scores = torch.einsum("bkgic,bkjc->bkgij", grouped, k)
    at = torch.arange(length, device=q.device)
    hidden = torch.zeros(length, length, dtype=q.dtype, device=q.device)
    hidden[at[:, None] < at[None, :]] = float("-inf")
    weights = torch.softmax(scores + hidden, dim=-1)
    return torch.einsum("bkgij,bkjc->bkgic", weights, v).flatten(1, 2)


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    half = x.shape[-1] // 2
    cos, sin = turns.cos[..., :half], turns.sin[..., half:]
    a, b = x[..., :half], x[..., half:]
    out = torch.empty_like(x)
    out[..., :half] = a * cos - b * sin
    out[..., half:] = b * cos + a * sin
    return out
