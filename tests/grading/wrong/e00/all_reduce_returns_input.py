# exercise: ring_all_reduce
# says: nothing was reduced

import torch


def scatter(group, tensor):
    n, me = group.size, group.rank
    chunks = tensor.flatten().tensor_split(n)
    travelling = chunks[me - 1]
    for step in range(n - 1):
        own = chunks[(me - 2 - step) % n]
        box = torch.empty_like(own)
        travelling = group.exchange(travelling, (me + 1) % n, box, (me - 1) % n) + own
    return travelling


def gather(group, chunk, sizes):
    n, me = group.size, group.rank
    places = [chunk.new_empty(size) for size in sizes]
    places[me] = chunk
    for step in range(n - 1):
        group.exchange(places[me - step], (me + 1) % n, places[(me - step - 1) % n], (me - 1) % n)
    return torch.cat(places)


def ring_all_reduce(group, tensor):
    sizes = [c.numel() for c in tensor.flatten().tensor_split(group.size)]
    gather(group, scatter(group, tensor), sizes)
    return tensor
