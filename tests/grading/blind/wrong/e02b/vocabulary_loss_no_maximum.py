# exercise: vocabulary_loss
# says: exp of a large logit overflows
# exp of the bare logits, without the maximum, overflows for large logits; "the maximum m over
# all ranks (exp must not overflow)"

import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    size = logits.shape[1]
    places = targets - tp.rank * size
    elsewhere = (places < 0) | (places >= size)
    own = logits.gather(-1, places.masked_fill(elsewhere, 0)[:, None])[:, 0]
    aim = tp.reduce(own.masked_fill(elsewhere, 0))
    total = tp.reduce(logits.exp().sum(dim=-1))
    return (total.log() - aim).mean()
