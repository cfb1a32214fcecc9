import torch


def tree_broadcast(group, tensor, root=0):
    """From the top: whoever holds the tensor for a range of places passes its upper part on."""
    buffer = tensor.detach().clone()
    me = (group.rank - root) % group.size
    held = None if me else 0
    step = 1
    while step < group.size:
        step *= 2
    low_bit = step if me == 0 else me & -me
    if held is None:
        group.recv(buffer, (root + me - low_bit) % group.size)
    reach = low_bit // 2
    while reach:
        if me + reach < group.size:
            group.send(buffer, (root + me + reach) % group.size)
        reach //= 2
    return buffer
