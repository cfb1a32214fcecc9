# exercise: vocabulary_loss
# says: or z_t has m taken out already
# The target's logit is read from the shifted logits, and m is added once more: the loss is too
# large by m.

import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    rows = logits.shape[1]
    m = tp.max(logits.amax(-1))
    z = logits - m[:, None]
    local = targets - tp.rank * rows
    elsewhere = (local < 0) | (local >= rows)
    aim = z.gather(-1, local.masked_fill(elsewhere, 0)[:, None])[:, 0]
    aim = tp.reduce(aim.masked_fill(elsewhere, 0))
    total = tp.reduce(z.exp().sum(-1))
    return (m + total.log() - aim).mean()
