# exercise: vocabulary_loss
# says: the target's logit has lost its gradient
# fetches the target's logit with tp.max (-inf elsewhere), which "has no gradient", so backward
# lacks the minus one at the target ("Backward comes by itself, from tp.reduce")

import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    top = tp.max(logits.amax(dim=-1))
    total = tp.reduce((logits - top[:, None]).exp().sum(dim=-1))
    width = logits.shape[-1]
    places = targets - tp.rank * width
    elsewhere = (places < 0) | (places >= width)
    picked = logits.gather(-1, places.masked_fill(elsewhere, 0)[:, None])[:, 0]
    aim = tp.max(picked.masked_fill(elsewhere, float("-inf")))
    return (top + total.log() - aim).mean()
