# right: ring_shift without exchange (even ranks send first, odd ones receive first), naive_all_reduce with an early return for ranks that only send and receive.
import torch


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    if group.size == 1:
        return tensor.clone()
    came = tensor.new_empty(tensor.shape)
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    if group.rank % 2 == 0:
        group.send(tensor, after)
        group.recv(came, before)
    else:
        group.recv(came, before)
        group.send(tensor, after)
    return came


def naive_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    if group.rank != 0:
        group.send(tensor, 0)
        return group.recv(torch.empty_like(tensor), 0)
    total = tensor.clone()
    for other in range(1, group.size):
        total += group.recv(torch.empty_like(total), other)
    for other in range(1, group.size):
        group.send(total, other)
    return total
