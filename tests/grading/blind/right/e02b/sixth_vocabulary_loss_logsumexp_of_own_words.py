# exercise: vocabulary_loss
# a logsumexp of the rank's own words first, joined over ranks by its maximum; the target's logit
# by index_put of the tokens found here; two messages
import torch


def vocabulary_loss(
    logits: torch.Tensor,
    targets: torch.Tensor,
    tp,
) -> torch.Tensor:
    n, words = logits.shape
    own = logits.logsumexp(dim=-1)
    top = tp.max(own)
    whole = top + tp.reduce(torch.exp(own - top)).log()

    (found,) = torch.where(targets // words == tp.rank)
    picked = logits[found, targets[found] % words]
    aim = logits.new_zeros(n).index_put((found,), picked)
    return (whole - tp.reduce(aim)).sum() / n
