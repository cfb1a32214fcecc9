# exercise: vocabulary_loss
# says: the sum of exponentials
# all-reduces the whole (n, V/N) matrix of exponentials and sums it afterwards; "Three numbers a
# token are enough"

import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    top = tp.max(logits.amax(dim=-1))
    total = tp.reduce((logits - top[:, None]).exp()).sum(dim=-1)
    width = logits.shape[-1]
    places = targets - tp.rank * width
    elsewhere = (places < 0) | (places >= width)
    picked = logits.gather(-1, places.masked_fill(elsewhere, 0)[:, None])[:, 0]
    aim = tp.reduce(picked.masked_fill(elsewhere, 0))
    return (top + total.log() - aim).mean()
