# right: no argsort: cuts what arrived into (source, expert) pieces and joins them by expert, and back
import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts):
    N, own = group.size, len(counts) // group.size
    came = group.all_to_all(torch.empty_like(counts), counts.contiguous())
    sent = [int(part.sum()) for part in counts.split(own)]
    got = [int(part.sum()) for part in came.split(own)]
    arrived = all_to_all(rows, group, sent, got)

    pieces = arrived.split(came.tolist())
    by_expert = [s * own + e for e in range(own) for s in range(N)]
    answers = experts(torch.cat([pieces[i] for i in by_expert]), came.view(N, own).sum(0))

    back = dict(zip(by_expert, answers.split([int(came[i]) for i in by_expert])))
    home = torch.cat([back[i] for i in range(N * own)])
    return all_to_all(home, group, got, sent)
