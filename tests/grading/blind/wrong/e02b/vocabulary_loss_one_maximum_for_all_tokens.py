# exercise: vocabulary_loss
# says: all exps of a token are 0
# one maximum for all tokens and not one a token: where a token's logits all lie far below
# another token's, its exps are all 0 and the loss is infinite: "Three numbers a token are
# enough: the **maximum** m over all ranks", "element by element"

import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    top = tp.max(logits.max().reshape(1))
    total = tp.reduce((logits - top).exp().sum(dim=-1))
    places = targets - tp.rank * logits.shape[-1]
    elsewhere = (places < 0) | (places >= logits.shape[-1])
    aim = logits.gather(-1, places.masked_fill(elsewhere, 0)[:, None])[:, 0]
    aim = tp.reduce(aim.masked_fill(elsewhere, 0))
    return (top + total.log() - aim).mean()
