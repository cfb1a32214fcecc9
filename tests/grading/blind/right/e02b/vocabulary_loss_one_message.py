# right: local logsumexp by hand, the target picked by comparing word numbers, both sums in one message, and m cancelled before
import torch


def vocabulary_loss(logits: torch.Tensor, targets: torch.Tensor, tp) -> torch.Tensor:
    words = torch.arange(logits.size(-1), device=logits.device)
    words = words + tp.rank * logits.size(-1)
    is_target = words == targets.unsqueeze(-1)
    shifted = logits - tp.max(logits.amax(-1)).unsqueeze(-1)
    own = torch.stack(
        [shifted.exp().sum(-1), shifted.masked_fill(~is_target, 0).sum(-1)]
    )
    total, target = tp.reduce(own).unbind()
    return torch.mean(torch.log(total) - target)
