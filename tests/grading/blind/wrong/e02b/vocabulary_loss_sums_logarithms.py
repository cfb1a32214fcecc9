# exercise: vocabulary_loss
# says: add up the exponentials, then take the logarithm
# each rank takes the logarithm of its own sum, and these are added up; the logarithm is of the
# whole sum

import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    width = logits.shape[-1]
    top = tp.max(logits.amax(dim=-1))
    log_sum = tp.reduce((logits - top[:, None]).exp().sum(dim=-1).log())
    places = targets - tp.rank * width
    elsewhere = (places < 0) | (places >= width)
    own = logits.gather(-1, places.masked_fill(elsewhere, 0)[:, None])[:, 0]
    return (top + log_sum - tp.reduce(own.masked_fill(elsewhere, 0))).mean()
