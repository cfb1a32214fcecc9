# right: cuts what arrived into one piece for each (source, expert), and reorders the list of pieces there and back.
import torch

from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts) -> torch.Tensor:
    ranks, each = group.size, len(counts) // group.size
    came = group.all_to_all(torch.zeros_like(counts), counts.contiguous())
    table = came.reshape(ranks, each)
    to = [int(n) for n in counts.reshape(ranks, each).sum(dim=1)]
    frm = [int(n) for n in table.sum(dim=1)]

    pieces = all_to_all(rows, group, to, frm).split(came.tolist())
    turned = [pieces[s * each + e] for e in range(each) for s in range(ranks)]
    answers = experts(torch.cat(turned), table.sum(dim=0))
    back = answers.split([len(piece) for piece in turned])
    home = torch.cat([back[e * ranks + s] for s in range(ranks) for e in range(each)])
    return all_to_all(home, group, frm, to)
