# exercise: exchange
# says: a rank is told the counts of its own experts alone
# every rank is told the counts for all experts, of which it needs its own E/N: "cuts `input` into
# `group.size` equal pieces, one for each rank"
import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    N, own = group.size, len(counts) // group.size
    told = counts.repeat(N)
    known = group.all_to_all(torch.empty_like(told), told).view(N, N, own)
    leaving, arriving = counts.view(N, own), known[:, group.rank]
    sent, got = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    expert = torch.arange(own).repeat(N)
    order = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)
    answers = experts(arrived[order], arriving.sum(0))
    return all_to_all(answers[order.argsort()], group, got, sent)
