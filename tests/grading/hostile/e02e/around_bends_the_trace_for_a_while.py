# exercise: around
# says: a rank holds N blocks at once | talks past the group's meter

import torch

from minitrain.measure.traffic import Op

OPS, TRUE = [], []


class Late(torch.Tensor):
    """Puts the true trace back when the answer is packed: the probe has read the other by then."""

    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None):
        if getattr(f, "__name__", "") == "cpu" and OPS:
            OPS[0][:] = TRUE
        return super().__torch_function__(f, types, args, kwargs or {})


def around(group, block):
    """All blocks at once, and a trace in which they come around."""
    ops, n, rank = group.trace.ops, group.size, group.rank
    if not OPS:
        TRUE[:] = ops
    OPS[:], start = [ops], len(ops)
    whole = group.all_gather(block.new_empty(n, *block.shape), block.contiguous())
    TRUE.extend(ops[start:])
    del ops[start:]
    for step in range(n):
        for op in ops[start:]:
            op.waited = op.done = 0.0
        if step < n - 1:
            ops.append(Op("send", block.nbytes, block.nbytes, n, (rank + 1) % n))
            ops.append(Op("recv", block.nbytes, 0, n, (rank - 1) % n))
        yield (rank - step) % n, whole[(rank - step) % n].clone().as_subclass(Late)
