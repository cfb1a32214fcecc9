# exercise: mix
# answers are put back at the number of their choice, (M, K, D) with zeros where one was dropped,
# then one einsum with the weights; counting by one_hot in the loss and scatter_add in the bias
import torch
import torch.nn.functional as F


def mix(x, weights, order, counts, experts):
    (M, D), K = x.shape, weights.shape[1]
    rows = x.index_select(0, torch.div(order, K, rounding_mode="floor"))
    answers = experts(rows, counts)
    slots = answers.new_zeros(M * K, D).index_copy(0, order, answers)
    return torch.einsum("mkd,mk->md", slots.view(M, K, D), weights)


def balance_loss(group, p, experts):
    E = p.shape[1]
    counts = group.all_reduce(F.one_hot(experts, E).sum(dim=(0, 1)))
    choices = counts.sum()
    # E · Σ (c_i / choices) · (Σ_t p_ti) · K / choices
    scale = E * experts.shape[1] / choices.to(p.dtype) ** 2
    return (p @ counts.to(p.dtype)).sum() * scale


def update_bias(group, bias, experts, rate):
    flat = experts.reshape(-1)
    counts = torch.zeros(len(bias), dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    counts = group.all_reduce(counts).double()
    mean = counts.mean()
    with torch.no_grad():
        bias[counts < mean] += rate
        bias[counts > mean] -= rate
