# right: plan sorts the choices in plain Python by (expert, -priority, number) and counts as it goes; mix writes the answers into one place a choice and sums a token's K places
import math

import torch


def plan(experts, count: int, priority, factor: float | None = None):
    of, score = experts.flatten().tolist(), priority.flatten().tolist()
    most = len(of) if factor is None else math.ceil(factor * len(of) / count)
    rows, taken = [], [0] * count
    for c in sorted(range(len(of)), key=lambda c: (of[c], -score[c], c)):
        if taken[of[c]] < most:
            rows.append(c)
            taken[of[c]] += 1
    as_tensor = {"dtype": torch.int64, "device": experts.device}
    return torch.tensor(rows, **as_tensor), torch.tensor(taken, **as_tensor)


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    (M, D), K = x.shape, weights.shape[1]
    rows = x.unsqueeze(1).expand(M, K, D).reshape(M * K, D)[order]
    answers = experts(rows, counts)
    places = answers.new_zeros(M * K, D).index_add(0, order, answers)
    weighed = places.view(M, K, D) * weights.unsqueeze(2)
    return weighed.sum(1).to(x.dtype)
