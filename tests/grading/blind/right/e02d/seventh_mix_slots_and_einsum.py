# exercise: mix
# answers go to one slot for each choice, then an einsum over the K slots of a token; counts by
# one_hot, the bias by two comparisons of whole numbers
import torch
import torch.nn.functional as F


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    M, K = weights.shape
    rows = x.repeat_interleave(K, dim=0).index_select(0, order)
    answers = experts(rows, counts)
    slots = x.new_zeros(M * K, x.shape[1]).index_copy(0, order, answers)
    return torch.einsum("mk,mkd->md", weights, slots.view(M, K, x.shape[1]))


def balance_loss(group, p, experts) -> torch.Tensor:
    E = p.size(1)
    counts = group.all_reduce(F.one_hot(experts, E).sum((0, 1)))
    choices = counts.sum().item()
    tokens = choices // experts.size(1)
    return torch.einsum("e,me->", counts.to(p.dtype), p) * (E / choices / tokens)


def update_bias(group, bias, experts, rate: float) -> None:
    E = bias.numel()
    counts = group.all_reduce(F.one_hot(experts, E).sum((0, 1)))
    scaled, total = counts * E, counts.sum()  # compared with no division
    with torch.no_grad():
        bias[scaled < total] += rate
        bias[scaled > total] -= rate
