# right: ring_shift without exchange (rank 0 receives first, all others send first); tree_broadcast finds its round from the highest bit of its place
import torch


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    arrived = torch.empty_like(tensor)
    after, before = (group.rank + 1) % group.size, (group.rank + group.size - 1) % group.size
    if group.rank == 0:
        group.recv(arrived, before)
        group.send(tensor, after)
    else:
        group.send(tensor, after)
        group.recv(arrived, before)
    return arrived


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    place = (group.rank - root) % group.size
    have, distance = tensor.clone(), 1
    if place > 0:
        highest = 1 << (place.bit_length() - 1)
        group.recv(have, (group.rank - highest) % group.size)
        distance = 2 * highest
    while place + distance < group.size:
        group.send(have, (group.rank + distance) % group.size)
        distance <<= 1
    return have
