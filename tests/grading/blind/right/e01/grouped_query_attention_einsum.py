# right: no repeated keys; the query heads are folded into (K, H/K), and the future is hidden by an added mask.
import torch


def grouped_query_attention(q, k, v) -> torch.Tensor:
    batch, heads, length, size = q.shape
    kv_heads = k.size(1)
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, length, size) * size**-0.5
    scores = torch.einsum("bkgic,bkjc->bkgij", grouped, k)
    mask = torch.full((length, length), float("-inf"), dtype=q.dtype, device=q.device)
    share = torch.softmax(scores + mask.triu(diagonal=1), dim=-1)
    return torch.einsum("bkgij,bkjc->bkgic", share, v).reshape(q.shape)
