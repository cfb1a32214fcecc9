# exercise: vocabulary_loss
# differs: the target is picked by a mask of (n, V/N), relative to the maximum, and both sums
# travel stacked in one message
import torch


def vocabulary_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    tp,
) -> torch.Tensor:
    words = logits.size(1)
    names = torch.arange(words, device=targets.device) + tp.rank * words
    top = tp.max(logits.detach().max(dim=1).values)
    shifted = logits - top.unsqueeze(1)
    is_target = targets.unsqueeze(1) == names
    picked = torch.where(is_target, shifted, torch.zeros_like(shifted)).sum(1)
    both = tp.reduce(torch.stack((shifted.exp().sum(1), picked)))
    return torch.mean(both[0].log() - both[1])
