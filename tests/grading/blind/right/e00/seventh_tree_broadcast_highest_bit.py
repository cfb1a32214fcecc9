# exercise: tree_broadcast
# no rounds with three roles: a place's highest bit says from whom it receives, and all higher bits
# to whom it sends
import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    place = (group.rank - root) % group.size

    def rank_of(other):
        return (other + root) % group.size

    bits = place.bit_length()
    if place == 0:
        values = tensor.detach().clone()
    else:
        values = torch.empty_like(tensor)
        group.recv(values, rank_of(place - (1 << (bits - 1))))
    further = (place + (1 << k) for k in range(bits, group.size.bit_length()))
    for other in further:
        if other < group.size:
            group.send(values, rank_of(other))
    return values
