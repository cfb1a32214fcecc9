import torch


def update_bias(group, bias, experts, rate):
    """Whole numbers only: E times a count against the sum."""
    counts = torch.zeros(len(bias), dtype=torch.int64)
    counts.index_add_(0, experts.flatten(), torch.ones(experts.numel(), dtype=torch.int64))
    counts = group.all_reduce(counts)
    scaled, total = len(bias) * counts, counts.sum()
    bias.add_(rate * ((scaled < total).to(bias.dtype) - (scaled > total).to(bias.dtype)))
