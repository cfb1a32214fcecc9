# exercise: ring_all_reduce
# says: past the group's meter

import torch.distributed as dist

from minitrain.measure.traffic import Op


def ring_all_reduce(group, tensor):
    """The sum by one ready-made call, and the record of a ring."""
    total, n = tensor.clone(), group.size
    group.process_group.allreduce([total], dist.AllreduceOptions()).wait()
    for kind, peer in [("send", (group.rank + 1) % n), ("recv", (group.rank - 1) % n)] * 2 * (n - 1):
        size = tensor.nbytes // n
        op = Op(kind, size, size * (kind == "send"), n, peer, members=group.ranks)
        op.issued, op.waited, op.done = group.now(), group.now(), group.now()
        group.trace.ops.append(op)
    return total
