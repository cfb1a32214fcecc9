# right: a small class holds the ring's arithmetic, the gather keeps its pieces in a dict and joins them at the end, chunk sizes come from divmod.
import torch


class Ring:
    def __init__(self, group):
        self.group, self.rank, self.size = group, group.rank, group.size

    def at(self, offset):
        return (self.rank + offset) % self.size

    def pass_on(self, out, into):
        return self.group.exchange(out, self.at(1), into, self.at(-1))


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    ring = Ring(group)
    chunks = tensor.flatten().tensor_split(ring.size)
    carried = chunks[ring.at(-1)].clone()
    for back in range(2, ring.size + 1):
        own = chunks[ring.at(-back)]
        carried = ring.pass_on(carried, torch.empty_like(own)).add_(own)
    return carried


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    ring = Ring(group)
    pieces = {ring.rank: chunk}
    for back in range(1, ring.size):
        last, coming = ring.at(1 - back), ring.at(-back)
        pieces[coming] = ring.pass_on(pieces[last], chunk.new_empty(sizes[coming]))
    return torch.cat([pieces[rank] for rank in range(ring.size)])


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    each, longer = divmod(tensor.numel(), group.size)
    sizes = [each + 1] * longer + [each] * (group.size - longer)
    finished = ring_reduce_scatter(group, tensor)
    return ring_all_gather(group, finished, sizes).reshape(tensor.shape)
