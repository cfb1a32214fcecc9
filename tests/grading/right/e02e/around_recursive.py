import torch


def around(group, block, step=0):
    """Both buffers by hand; the rest of the way is the same generator, a step on."""
    owner = (group.rank - step) % group.size
    if step == group.size - 1:
        yield owner, block
        return
    room = torch.zeros_like(block)
    works = [
        group.isend(block, (group.rank + 1) % group.size),
        group.irecv(room, (group.rank - 1) % group.size),
    ]
    yield owner, block
    for work in works:
        work.wait()
    yield from around(group, room, step + 1)
