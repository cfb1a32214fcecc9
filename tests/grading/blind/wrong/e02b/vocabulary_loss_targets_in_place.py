# exercise: vocabulary_loss
# says: changed its input
# -= changes the caller's targets; "`logits` and `targets` stay as they were"

import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    size = logits.shape[1]
    targets -= tp.rank * size
    elsewhere = (targets < 0) | (targets >= size)
    own = logits.gather(-1, targets.masked_fill(elsewhere, 0)[:, None])[:, 0]
    aim = tp.reduce(own.masked_fill(elsewhere, 0))
    top = tp.max(logits.amax(dim=-1))
    total = tp.reduce((logits - top[:, None]).exp().sum(dim=-1))
    return (top + total.log() - aim).mean()
