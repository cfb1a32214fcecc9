import torch

from minitrain.parallel.collectives.differentiable import all_to_all


def exchange(group, experts, rows, counts):
    """Blocks of a source and an expert are moved whole, and moved back."""
    n, held = group.size, len(counts) // group.size
    coming = torch.zeros_like(counts)
    group.all_to_all(coming, counts)
    table = coming.tolist()  # by source, then by expert
    sent = [int(part.sum()) for part in counts.chunk(n)]
    got = [sum(table[s * held : (s + 1) * held]) for s in range(n)]
    blocks = all_to_all(rows, group, sent, got).split(table)
    by_expert = [s * held + e for e in range(held) for s in range(n)]
    sizes = [table[i] for i in by_expert]
    answers = experts(torch.cat([blocks[i] for i in by_expert]), coming.view(n, held).sum(0))
    home = dict(zip(by_expert, answers.split(sizes)))
    return all_to_all(torch.cat([home[i] for i in range(n * held)]), group, got, sent)
