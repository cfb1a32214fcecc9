# exercise: vocabulary_loss
# says: made a tensor of
# makes a one-hot of all V words for every token and slices it; "No rank makes a tensor of n·V
# numbers"

import torch
from torch.nn.functional import one_hot


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    size = logits.shape[1]
    hits = one_hot(targets, tp.size * size)  # (n, V)
    mine = hits[:, tp.rank * size : (tp.rank + 1) * size].bool()
    top = tp.max(logits.amax(dim=-1))
    total = tp.reduce((logits - top[:, None]).exp().sum(dim=-1))
    aim = tp.reduce(logits.masked_fill(~mine, 0).sum(dim=-1))
    return (top + total.log() - aim).mean()
