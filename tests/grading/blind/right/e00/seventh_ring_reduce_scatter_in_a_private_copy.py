# exercise: ring_reduce_scatter
# sums grow in a private copy of the whole tensor, cut into views; the finished chunk is cloned out
# of it at the end
import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    n, r = group.size, group.rank
    sums = tensor.clone().view(-1).tensor_split(n)
    order = [(r - 1 - s) % n for s in range(n)]  # each is sent one step after it came
    for leaves, comes in zip(order, order[1:]):
        buffer = torch.empty_like(sums[comes])
        group.exchange(sums[leaves], (r + 1) % n, buffer, (r - 1) % n)
        sums[comes].add_(buffer)
    return sums[r].clone()
