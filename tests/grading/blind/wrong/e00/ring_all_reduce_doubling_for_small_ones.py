# exercise: ring_all_reduce
# says: on a ring each rank talks to one neighbour only
# below 4 KiB (and 2^k ranks) it swaps whole tensors by recursive doubling instead of using the
# ring, but the docstring says "Made of the two functions above", and section 6 compares the
# ring itself at small sizes.

import torch


# the two functions above, as they were graded (right)
def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    travelling = chunks[(group.rank - 1) % group.size].clone()
    for step in range(group.size - 1):
        own = chunks[(group.rank - 2 - step) % group.size]
        travelling = group.exchange(travelling, right, torch.empty_like(own), left) + own
    return travelling


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    out = chunk.new_empty(sum(sizes))
    places = out.split(sizes)
    places[group.rank].copy_(chunk)
    for step in range(group.size - 1):
        send, receive = (group.rank - step) % group.size, (group.rank - step - 1) % group.size
        group.exchange(places[send], right, places[receive], left)
    return out


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    power_of_two = group.size & (group.size - 1) == 0
    if power_of_two and tensor.numel() * tensor.element_size() < 4096:
        total, distance = tensor.clone(), 1
        while distance < group.size:
            partner = group.rank ^ distance
            total = total + group.exchange(total, partner, torch.empty_like(total), partner)
            distance *= 2
        return total
    sizes = [c.numel() for c in tensor.flatten().tensor_split(group.size)]
    mine = ring_reduce_scatter(group, tensor)
    return ring_all_gather(group, mine, sizes).view(tensor.shape)
