# exercise: exchange
# says: `experts` was given row sums
# experts are told how many rows came from each rank, not how many are for each of them; both
# lists have one length where a rank has as many experts as there are ranks
import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    leaving = counts.view(group.size, -1)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)
    sent, got = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    own = torch.arange(leaving.shape[1]).repeat(group.size)
    order = own.repeat_interleave(arriving.flatten()).argsort(stable=True)
    sizes = arriving.sum(1) if leaving.shape[1] == group.size else arriving.sum(0)
    answers = experts(arrived[order], sizes)
    return all_to_all(answers[order.argsort()], group, got, sent)
