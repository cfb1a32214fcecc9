# exercise: exchange
# says: To undo the sort take `answers[order.argsort()]`
# the answers are put through the same permutation again, not through its inverse; "Undo that
# before answers go home". Right only where the permutation is its own inverse: one expert a
# rank, or 2 ranks with 2 experts each and even load.

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    leaving = counts.view(group.size, -1)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)
    sent, got = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    own = torch.arange(leaving.shape[1]).repeat(group.size)
    order = own.repeat_interleave(arriving.flatten()).argsort(stable=True)
    answers = experts(arrived[order], arriving.sum(0))
    return all_to_all(answers[order], group, got, sent)
