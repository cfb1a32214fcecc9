# exercise: around
# says: call the result of pass_on after the yield
# the message is waited for at once, before the block is handed out, so nothing travels while
# the caller computes

import torch


def around(group, block: torch.Tensor):
    for step in range(group.size):
        last = step == group.size - 1
        following = None if last else pass_on(group, block)()
        yield (group.rank - step) % group.size, block
        block = following
