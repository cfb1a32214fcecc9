# exercise: ring_backward
# says: pass one on as soon as this rank's part is in it
# keeps every part and sends them all after the last block is computed: N parts held, and no
# overlap ("Each travels while the next block is computed")

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
    dq, parts = 0, []
    for owner, block in around(group, kv):
        d_rows, d_block = gradients(owner, block)
        dq = dq + d_rows
        parts.append(d_block)
    own, coming = parts[0], None
    for part in parts[1:]:
        if coming is not None:
            part = part + coming()
        coming = pass_on(group, part)
    return dq, own if coming is None else own + coming()
