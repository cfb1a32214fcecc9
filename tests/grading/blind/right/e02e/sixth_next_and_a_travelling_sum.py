# exercise: ring_backward
# the own block is taken by next() before the loop, the sum is a small object that waits in add;
# the forward keeps each run's answer apart and joins them at the end; around yields its last block
# behind the loop
from collections import deque

import torch


def around(group, block):
    owners = deque(range(group.size))
    owners.rotate(-group.rank)
    while len(owners) > 1:
        finish = pass_on(group, block)
        yield owners.popleft(), block
        owners.rotate(1)
        block = finish()
    yield owners[0], block


def ring_forward(group, places, q, kv):
    runs = {}
    for owner, (k, v) in around(group, kv):
        for rows, keys, offset in halves(places, group.rank, owner):
            mine = q[:, :, rows]
            if rows.start not in runs:
                runs[rows.start] = nothing_read(mine)
            if offset >= 0:
                found = attend(mine, k[:, :, keys], v[:, :, keys], offset)
                runs[rows.start] = merge(*runs[rows.start], *found)
    outs, weights = zip(*(runs[start] for start in sorted(runs)))
    return torch.cat(outs, dim=2).to(q.dtype), torch.cat(weights, dim=2)


class Travelling:
    """The sum for one block, on its way along the ring."""

    def __init__(self, group):
        self.group, self.finish = group, None

    def add_to(self, part):
        return part if self.finish is None else self.finish().add_(part)

    def send(self, part):
        self.finish = pass_on(self.group, self.add_to(part))


def ring_backward(group, kv, gradients):
    ring = around(group, kv)
    dq, own = gradients(*next(ring))
    travelling = Travelling(group)
    for owner, block in ring:
        more, part = gradients(owner, block)
        dq = dq + more
        travelling.send(part)
    return dq, travelling.add_to(own)
