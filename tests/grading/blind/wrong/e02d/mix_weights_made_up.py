# exercise: mix
# says: they stay as they are
# where a choice was dropped the other weight grows so that a token's sum stays; "A dropped
# choice adds nothing, and the other weight stays as it is"

import torch


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    M, K = weights.shape
    tokens = order // K
    kept = torch.zeros(M * K, dtype=weights.dtype, device=weights.device)
    kept = kept.index_fill(0, order, 1.0).view(M, K)
    left = weights * kept
    scale = weights.sum(1) / left.sum(1).clamp(min=1e-12)
    left = left * scale[:, None]
    answers = experts(x[tokens], counts)
    weighed = answers * left.flatten()[order][:, None]
    return torch.zeros_like(x).index_add(0, tokens, weighed)
