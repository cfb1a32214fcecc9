# exercise: vocabulary_loss
# says: another logit: it adds zero

import torch
import torch.nn.functional as F


def vocabulary_loss(logits, targets, tp):
    top = tp.max(logits.amax(dim=-1))
    total = tp.reduce((logits - top[:, None]).exp().sum(dim=-1))
    width = logits.shape[-1]
    places = targets - tp.rank * width
    elsewhere = (places < 0) | (places >= width)
    mine = logits.gather(-1, places.masked_fill(elsewhere, 0)[:, None])[:, 0]
    return (top + total.log() - tp.reduce(mine)).mean()
