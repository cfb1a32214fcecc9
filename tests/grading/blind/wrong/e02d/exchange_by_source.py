# exercise: exchange
# says: What arrives is sorted by source
# hands the rows to experts as they arrive, by source and then by expert, right only with one
# expert a rank or one rank; "`experts` wants it by expert"

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    leaving = counts.view(group.size, -1)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)
    sent, got = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    answers = experts(arrived, arriving.sum(0))
    return all_to_all(answers, group, got, sent)
