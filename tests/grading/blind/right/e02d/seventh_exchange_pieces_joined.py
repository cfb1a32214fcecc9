# exercise: exchange
# no argsort: the arrived rows are split into (source, expert) pieces, which are put together
# expert by expert, and back again
import torch
from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    size = group.size
    incoming = group.all_to_all(torch.zeros_like(counts), counts)  # flat: N * E/N
    table = incoming.reshape(size, -1)
    each = table.shape[1]
    sent = [int(piece.sum()) for piece in counts.chunk(size)]
    got = [sum(line) for line in table.tolist()]

    pieces = all_to_all(rows, group, sent, got).split(incoming.tolist())
    by_expert = [pieces[s * each + e] for e in range(each) for s in range(size)]
    answers = experts(torch.cat(by_expert), table.sum(0))
    parts = answers.split([len(piece) for piece in by_expert])
    by_source = [parts[e * size + s] for s in range(size) for e in range(each)]
    return all_to_all(torch.cat(by_source), group, got, sent)
