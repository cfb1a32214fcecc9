# exercise: exchange
# says: To undo the sort take `answers[order.argsort()]`
# "undoes" the sorting by the same permutation instead of its inverse

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts):
    came = group.all_to_all(torch.empty_like(counts), counts).view(group.size, -1)
    sent = counts.view(group.size, -1).sum(1).tolist()
    got = came.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    expert = torch.arange(came.shape[1]).repeat(group.size).repeat_interleave(came.flatten())
    by_expert = expert.argsort(stable=True)
    answers = experts(arrived[by_expert], came.sum(0))
    return all_to_all(answers[by_expert], group, got, sent)
