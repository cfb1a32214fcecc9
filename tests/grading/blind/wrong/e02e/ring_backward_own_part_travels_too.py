# exercise: ring_backward
# says: in the dtype that `gradients` gives
# the own part is sent round the whole ring: N messages of gradients instead of N-1 ("The own
# part waits at home ... N-1 messages")

import torch

if "pass_on" not in globals():  # given in the notebook

    def pass_on(group, tensor):
        arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
        leaving = group.isend(tensor, (group.rank + 1) % group.size)
        return lambda: (leaving.wait(), arriving.wait())[1]


if "around" not in globals():  # an earlier exercise, right

    def around(group, block):
        for step in range(group.size):
            coming = pass_on(group, block) if step + 1 < group.size else None
            yield (group.rank - step) % group.size, block
            if coming is not None:
                block = coming()


def ring_backward(group, kv, gradients) -> tuple[torch.Tensor, torch.Tensor]:
    dq, coming = 0, None
    for owner, block in around(group, kv):
        d_rows, d_block = gradients(owner, block)
        dq = dq + d_rows
        if coming is not None:
            d_block = d_block + coming()
        coming = pass_on(group, d_block) if group.size > 1 else None
    return dq, d_block if coming is None else coming()
