import torch


def balance_loss(group, p, experts):
    """Σ over the experts one by one; the counts are whole numbers until they are divided."""
    m, count = p.shape
    counts = torch.stack([(experts == e).sum() for e in range(count)])
    counts = group.all_reduce(counts)
    choices = int(counts.sum())
    tokens = choices // experts.shape[1]
    parts = [counts[e].item() / choices * p[:, e].sum() / tokens for e in range(count)]
    return count * torch.stack(parts).sum()
