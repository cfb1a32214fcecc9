# exercise: exchange
# says: To undo the sort take `answers[order.argsort()]`
# applies the same order again instead of its inverse before answers go home: right only where
# that order is its own inverse (one expert a rank; as many experts a rank as ranks with even
# counts); the text: "Undo that before answers go home", answers "in the same order" as rows.

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    N = group.size
    leaving = counts.view(N, -1)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)
    sent, got = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    own = torch.arange(leaving.shape[1], device=counts.device)
    expert = own.repeat(N).repeat_interleave(arriving.flatten())
    order = expert.argsort(stable=True)
    answers = experts(arrived[order], arriving.sum(0))
    return all_to_all(answers[order], group, got, sent)
