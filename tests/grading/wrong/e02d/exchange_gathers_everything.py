# exercise: exchange
# says: each to the one rank that needs it

import torch

from minitrain.parallel.collectives.differentiable import all_gather, reduce_scatter


def exchange(group, experts, rows, counts):
    """All rows to all ranks; each answers for its own experts, and a sum brings all home."""
    n, held = group.size, len(counts) // group.size
    table = group.all_gather(counts.new_empty(n, len(counts)), counts)
    most = int(table.sum(1).max())
    padded = torch.cat([rows, rows.new_zeros(most - len(rows), rows.shape[1])])
    everything = all_gather(padded, group, 0)  # (N·most, D)
    mine = range(group.rank * held, (group.rank + 1) * held)
    starts = table.cumsum(1) - table
    places = [
        torch.arange(int(table[r, e])) + r * most + starts[r, e] for e in mine for r in range(n)
    ]
    places = torch.cat(places)
    answers = experts(everything[places], table[:, mine.start : mine.stop].sum(0))
    home = torch.zeros_like(everything).index_copy(0, places, answers)
    return reduce_scatter(home, group, 0)[: len(rows)]
