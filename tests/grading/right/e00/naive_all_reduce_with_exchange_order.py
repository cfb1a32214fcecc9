import torch


def naive_all_reduce(group, tensor):
    others = range(1, group.size)
    if group.rank:
        group.send(tensor, 0)
        return group.recv(torch.empty_like(tensor), 0)
    parts = [tensor] + [group.recv(torch.empty_like(tensor), rank) for rank in others]
    total = torch.stack(parts).sum(0)
    for work in [group.isend(total, rank) for rank in others]:
        work.wait()
    return total
