# exercise: exchange
# says: undo the sort by expert

import torch

from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts):
    leaving = counts.view(group.size, -1)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)
    there, here = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, there, here)
    expert = torch.arange(arriving.shape[1]).repeat(group.size)
    order = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)
    answers = experts(arrived[order], arriving.sum(0))
    return all_to_all(answers, group, here, there)
