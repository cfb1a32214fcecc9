# exercise: exchange
# says: `answers[order]` sorts a second time
# The sorting by expert is not undone: the answers are indexed with the same permutation once
# more instead of its inverse.

import torch

from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    theirs = group.all_to_all(torch.empty_like(counts), counts)
    sent = counts.view(group.size, -1).sum(1).tolist()
    by_source = theirs.view(group.size, -1)
    got = by_source.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    own = torch.arange(by_source.shape[1]).repeat(group.size)
    by_expert = own.repeat_interleave(theirs).argsort(stable=True)
    answers = experts(arrived[by_expert], by_source.sum(0))
    return all_to_all(answers[by_expert], group, got, sent)
