# exercise: vocabulary_loss
# says: all exps of a token are 0
# takes one maximum over all tokens, so the sum of a token whose logits lie far below another's
# underflows and its loss is inf; the maximum is one of "three numbers a token", "element by
# element"

import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    top = tp.max(logits.max().reshape(1))
    total = tp.reduce((logits - top).exp().sum(dim=-1))
    width = logits.shape[-1]
    places = targets - tp.rank * width
    elsewhere = (places < 0) | (places >= width)
    picked = logits.gather(-1, places.masked_fill(elsewhere, 0)[:, None])[:, 0]
    aim = tp.reduce(picked.masked_fill(elsewhere, 0))
    return (top + total.log() - aim).mean()
