import torch


def grouped_query_attention(q, k, v):
    """Heads folded into groups: no key or value is ever copied."""
    batch, heads, length, size = q.shape
    groups = k.shape[1]
    q = q.reshape(batch, groups, heads // groups, length, size)
    scores = torch.einsum("bgnic,bgjc->bgnij", q, k) * size**-0.5
    mask = torch.full((length, length), float("-inf"), dtype=q.dtype).triu(1)
    weights = torch.softmax(scores + mask, dim=-1)
    return torch.einsum("bgnij,bgjc->bgnic", weights, v).reshape(batch, heads, length, size)
