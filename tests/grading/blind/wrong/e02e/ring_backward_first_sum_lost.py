# exercise: ring_backward
# says: which waited at home
# what comes home from the left replaces the part for the own block; the part that waited is not
# added

import torch


def ring_backward(group, kv, gradients) -> tuple[torch.Tensor, torch.Tensor]:
    dq, arriving = None, None
    for owner, block in around(group, kv):
        new_dq, part = gradients(owner, block)
        dq = new_dq if dq is None else dq + new_dq
        if owner == group.rank:
            own = part
            continue
        if arriving is not None:
            part = part + arriving()
        arriving = pass_on(group, part)
    return dq, own if arriving is None else arriving()
