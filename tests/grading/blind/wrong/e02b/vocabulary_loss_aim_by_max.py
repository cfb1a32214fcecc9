# exercise: vocabulary_loss
# says: the target's logit has lost its gradient
# the target's logit travels by tp.max, which "has no gradient", so the value is right and the
# gradient lacks the target's -1/n

import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    size = logits.shape[1]
    places = targets - tp.rank * size
    elsewhere = (places < 0) | (places >= size)
    own = logits.gather(-1, places.masked_fill(elsewhere, 0)[:, None])[:, 0]
    aim = tp.max(own.masked_fill(elsewhere, float("-inf")))
    top = tp.max(logits.amax(dim=-1))
    total = tp.reduce((logits - top[:, None]).exp().sum(dim=-1))
    return (top + total.log() - aim).mean()
