# exercise: vocabulary_loss
# says: take each token's own maximum over all ranks off first
# one maximum over all tokens instead of one a token: a token whose logits lie far below
# another's underflows to log(0)

import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    rows = logits.shape[1]
    m = tp.max(logits.max())
    total = tp.reduce((logits - m).exp().sum(1))
    local = targets - tp.rank * rows
    here = (local >= 0) & (local < rows)
    picked = logits.gather(1, local.clamp(0, rows - 1)[:, None])[:, 0]
    z = tp.reduce(torch.where(here, picked, 0.0))
    return (m + total.log() - z).mean()
