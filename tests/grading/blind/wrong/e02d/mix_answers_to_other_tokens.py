# exercise: mix
# says: and come to other tokens
# the tokens are brought to their rows by order // K, the answers back by order % M; "add each
# answer, times its weight, to its token"
import torch


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    answers = experts(x[order // weights.shape[1]], counts)
    weighed = answers * weights.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, order % len(x), weighed)
