# exercise: tree_broadcast
# differs: no test in every round; a place computes from its highest bit when and from whom it
#   receives, then sends on
import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    place = (group.rank - root) % group.size
    rank_of = lambda p: (root + p) % group.size  # noqa: E731
    if place == 0:
        held, distance = tensor.clone(), 1
    else:
        bit = 1 << (place.bit_length() - 1)
        held, distance = torch.zeros_like(tensor), 2 * bit
        group.recv(held, rank_of(place - bit))
    while place + distance < group.size:
        group.send(held, rank_of(place + distance))
        distance <<= 1
    return held
