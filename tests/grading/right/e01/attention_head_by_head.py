import torch


def grouped_query_attention(q, k, v):
    """One head after the other, the softmax written out, its largest score taken off first."""
    heads, length, size = q.shape[1:]
    past = torch.arange(length)[:, None] >= torch.arange(length)
    out = []
    for head in range(heads):
        group = head // (heads // k.shape[1])
        scores = torch.matmul(q[:, head], k[:, group].mT) / size**0.5
        scores = torch.where(past, scores, float("-inf"))
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        out.append(torch.bmm(weights / weights.sum(-1, keepdim=True), v[:, group]))
    return torch.stack(out, dim=1)
