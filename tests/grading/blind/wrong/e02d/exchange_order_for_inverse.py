# exercise: exchange
# says: To undo the sort take `answers[order.argsort()]`
# answers are sorted by `order` once more instead of by its inverse, right only where order is
# its own inverse (two ranks with two experts, even load); "Undo that before answers go home"

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    N, own = group.size, len(counts) // group.size
    leaving = counts.view(N, own)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)
    sent, got = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    expert = torch.arange(own, device=rows.device).repeat(N)
    order = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)
    answers = experts(arrived[order], arriving.sum(0))
    return all_to_all(answers[order], group, got, sent)
