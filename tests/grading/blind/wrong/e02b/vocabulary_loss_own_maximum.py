# exercise: vocabulary_loss
# says: what is added up needs one for all ranks
# Each rank takes its own maximum out of the sum; the ranks' sums are then of different scale.

import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    rows = logits.shape[1]
    m = logits.detach().amax(-1)
    local = targets - tp.rank * rows
    elsewhere = (local < 0) | (local >= rows)
    aim = logits.gather(-1, local.masked_fill(elsewhere, 0)[:, None])[:, 0]
    aim = tp.reduce(aim.masked_fill(elsewhere, 0))
    total = tp.reduce((logits - m[:, None]).exp().sum(-1))
    return (m + total.log() - aim).mean()
