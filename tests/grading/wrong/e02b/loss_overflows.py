# exercise: vocabulary_loss
# says: exp of a large logit overflows

import torch
import torch.nn.functional as F


def vocabulary_loss(logits, targets, tp):
    total = tp.reduce(logits.exp().sum(dim=-1))
    width = logits.shape[-1]
    places = targets - tp.rank * width
    elsewhere = (places < 0) | (places >= width)
    mine = logits.gather(-1, places.masked_fill(elsewhere, 0)[:, None])[:, 0].masked_fill(
        elsewhere, 0
    )
    return (total.log() - tp.reduce(mine)).mean()
