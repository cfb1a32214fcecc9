# exercise: ring_backward
# how it differs: the own block's step is taken out of the loop by next(), and the results are
# added up in place.
import torch


def ring_backward(group, kv, gradients) -> tuple[torch.Tensor, torch.Tensor]:
    ring = around(group, kv)
    dq, mine = gradients(*next(ring))
    finish = None
    for owner, block in ring:
        more, part = gradients(owner, block)
        dq += more
        if finish:
            part += finish()
        finish = pass_on(group, part)
    if finish:
        mine += finish()
    return dq, mine
