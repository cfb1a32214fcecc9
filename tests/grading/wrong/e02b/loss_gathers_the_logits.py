# exercise: vocabulary_loss
# says: The logits stay
# says: the whole logits have

import torch
import torch.nn.functional as F


def vocabulary_loss(logits, targets, tp):
    whole = tp.all_gather(logits.T[None])[0].T
    return F.cross_entropy(whole, targets)
