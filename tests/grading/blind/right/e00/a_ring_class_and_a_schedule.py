# right: a small class holds the neighbours, the broadcast follows a written-out schedule, reduce-scatter adds inside one private copy
import torch


class Ring:
    """Who sits where, and one turn of the ring."""

    def __init__(self, group):
        self.group, self.n, self.me = group, group.size, group.rank

    def index(self, back):
        return (self.me - back) % self.n

    def turn(self, out, into):
        self.group.exchange(out, self.index(-1), into, self.index(1))
        return into


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    into = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return Ring(group).turn(tensor, into)


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    n = group.size
    place = (group.rank - root) % n
    distances = [2**k for k in range((n - 1).bit_length())]
    schedule = [(p, p + d) for d in distances for p in range(min(d, n - d))]
    result = tensor.clone()
    for giver, taker in schedule:
        if place == giver:
            group.send(result, (taker + root) % n)
        elif place == taker:
            group.recv(result, (giver + root) % n)
    return result


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    ring = Ring(group)
    sums = tensor.flatten().clone().tensor_split(ring.n)
    for back in range(1, ring.n):
        going, coming = sums[ring.index(back)], sums[ring.index(back + 1)]
        coming.add_(ring.turn(going, torch.empty_like(coming)))
    return sums[ring.me].clone()


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    ring = Ring(group)
    whole = torch.empty(sum(sizes), dtype=chunk.dtype, device=chunk.device)

    def part(r):
        return whole.narrow(0, sum(sizes[:r]), sizes[r])

    part(ring.me).copy_(chunk)
    for back in range(ring.n - 1):
        ring.turn(part(ring.index(back)), part(ring.index(back + 1)))
    return whole


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    n, total = group.size, tensor.numel()
    sizes = [total // n + (r < total % n) for r in range(n)]
    chunk = ring_reduce_scatter(group, tensor)
    return ring_all_gather(group, chunk, sizes).view(tensor.shape)


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    ring = Ring(group)
    arrived = {ring.me: chunks[ring.me].clone()}
    for step in range(1, ring.n):
        to, source = ring.index(-step), ring.index(step)
        arrived[source] = torch.empty_like(chunks[to])
        group.exchange(chunks[to], to, arrived[source], source)
    return [arrived[r] for r in range(ring.n)]


def naive_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    others = range(1, group.size)
    if group.rank in others:
        group.send(total, 0)
        group.recv(total, 0)
        return total
    incoming = torch.empty_like(tensor)
    for rank in others:
        group.recv(incoming, rank)
        total += incoming
    for rank in others:
        group.send(total, rank)
    return total
