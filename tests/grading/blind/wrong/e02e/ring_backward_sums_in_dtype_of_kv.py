# exercise: ring_backward
# says: not in that of kv
# sums and sends the gradient of kv in kv's dtype, bfloat16 where kv is, and not in that of the
# parts ("gives dq of this block and this rank's part of its dkv ... in the dtypes of the
# results")

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
    dq, own, coming = 0, torch.zeros_like(kv), None
    for owner, block in around(group, kv):
        d_rows, part = gradients(owner, block)
        dq = dq + d_rows
        if owner == group.rank:
            own += part
            continue
        d_block = torch.zeros_like(kv)
        d_block += part
        if coming is not None:
            d_block += coming()
        coming = pass_on(group, d_block)
    return dq, own if coming is None else own + coming()
