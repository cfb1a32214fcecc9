import torch


def ring_shift(group, tensor):
    """Even ranks send first, odd ones receive first; the last of an odd ring waits one turn."""
    n, me = group.size, group.rank
    incoming = torch.zeros_like(tensor)
    if me % 2 == 0:
        group.send(tensor, (me + 1) % n)
        group.recv(incoming, (me - 1) % n)
    else:
        group.recv(incoming, (me - 1) % n)
        group.send(tensor, (me + 1) % n)
    return incoming
