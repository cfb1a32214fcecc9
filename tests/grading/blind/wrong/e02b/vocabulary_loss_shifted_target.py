# exercise: vocabulary_loss
# says: or z_t has m taken out already
# the target's logit is read from the logits that m was already taken from, and m is added once
# more in front

import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    rows = logits.shape[1]
    m = tp.max(logits.max(1).values)
    z = logits - m[:, None]
    total = tp.reduce(z.exp().sum(1))
    local = targets - tp.rank * rows
    here = (local >= 0) & (local < rows)
    picked = z.gather(1, local.clamp(0, rows - 1)[:, None])[:, 0]
    target = tp.reduce(torch.where(here, picked, 0.0))
    return (m + total.log() - target).mean()
