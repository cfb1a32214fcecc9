import torch


def pairwise_all_to_all(group, chunks):
    """Every step under way at the same time, then one wait for all; the result is rows of a table."""
    n, me = group.size, group.rank
    table = torch.stack(chunks)
    result, works = list(table.clone()), []
    for step in range(1, n):
        to, source = (me + step) % n, (me - step) % n
        works += [group.irecv(result[source], source), group.isend(table[to], to)]
    for work in works:
        work.wait()
    return result
