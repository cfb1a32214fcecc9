# right: the bias compares whole numbers, count * E with the sum, no mean; the exchange cuts what arrived into pieces and joins them in the other order, no sort
import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def update_bias(group, bias, experts, rate: float) -> None:
    E = bias.numel()
    chosen = torch.zeros(E, dtype=torch.int64, device=experts.device)
    for e in range(E):
        chosen[e] = (experts == e).sum()
    group.all_reduce(chosen)
    everything = chosen.sum()
    bias[chosen * E < everything] += rate
    bias[chosen * E > everything] -= rate


def exchange(group, experts, rows, counts) -> torch.Tensor:
    N, each = group.size, len(counts) // group.size
    came = group.all_to_all(torch.empty_like(counts), counts)
    to = [int(part.sum()) for part in counts.chunk(N)]
    of = [int(part.sum()) for part in came.chunk(N)]
    arrived = all_to_all(rows, group, to, of)

    pieces = arrived.split(came.tolist())  # by source, then by expert
    by_expert = [pieces[s * each + e] for e in range(each) for s in range(N)]
    mine = came.view(N, each)
    answers = experts(torch.cat(by_expert), mine.sum(0))

    pieces = answers.split(mine.T.flatten().tolist())  # by expert, then by source
    by_source = [pieces[e * N + s] for s in range(N) for e in range(each)]
    return all_to_all(torch.cat(by_source), group, of, to)
