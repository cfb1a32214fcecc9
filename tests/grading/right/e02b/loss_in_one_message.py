import torch


def vocabulary_loss(logits, targets, tp):
    """The sum and the target's logit travel together, in two columns."""
    n, width = logits.shape
    shifted = logits - tp.max(logits.amax(-1, keepdim=True))
    first = width * tp.rank
    here = (first <= targets) & (targets < first + width)
    column = torch.where(here, targets - first, 0)
    aim = torch.where(here, shifted[torch.arange(n), column], 0)
    both = tp.reduce(torch.stack([shifted.exp().sum(-1), aim], -1))
    return torch.mean(both[:, 0].log() - both[:, 1])
