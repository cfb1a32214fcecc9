# exercise: around
# says: then a rank holds N blocks at once

import torch


def around(group, block):
    blocks = group.all_gather(block.new_empty(group.size, *block.shape), block)
    for step in range(group.size):
        owner = (group.rank - step) % group.size
        yield owner, blocks[owner]
