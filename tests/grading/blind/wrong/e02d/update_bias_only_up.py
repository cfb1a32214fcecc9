# exercise: update_bias
# says: who got too much goes down as well
# only experts with too few tokens are moved; "down if it got more"
import torch


def update_bias(group, bias, experts, rate: float) -> None:
    counts = torch.bincount(experts.flatten(), minlength=len(bias))
    group.all_reduce(counts)
    bias += rate * (counts < counts.double().mean())
