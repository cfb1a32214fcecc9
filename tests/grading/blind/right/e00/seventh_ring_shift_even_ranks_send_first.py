# exercise: ring_shift
# send and recv instead of exchange: even ranks send first, odd ranks receive first, so they never
# all wait in a send
import torch


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    into = torch.empty_like(tensor)
    if group.rank % 2 == 0:
        group.send(tensor, right)
        group.recv(into, left)
    else:
        group.recv(into, left)
        group.send(tensor, right)
    return into
