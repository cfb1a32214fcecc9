# exercise: ring_reduce_scatter
# differs: chunks in travelling order in one list, the sum made in place in the buffer that arrived;
#   the gather collects pieces in a dict and joins them with cat, the all-reduce computes the sizes
#   by divmod
import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    # chunk r - 1 leaves first, then r - 2 ..., and last of all r comes home
    first, *rest = (chunks[group.rank - 1 - k] for k in range(group.size))
    moving = first
    for part in rest:
        landing = torch.zeros_like(part)
        group.exchange(moving, right, landing, left)
        moving = landing.add_(part)
    return moving


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    found = {group.rank: chunk}
    who = group.rank
    while len(found) < group.size:
        last, who = found[who], (who - 1) % group.size
        found[who] = group.exchange(last, right, chunk.new_zeros(sizes[who]), left)
    return torch.cat([found[r] for r in sorted(found)])


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    quotient, longer = divmod(tensor.numel(), group.size)
    sizes = [quotient + (r < longer) for r in range(group.size)]
    return ring_all_gather(group, ring_reduce_scatter(group, tensor), sizes).reshape(
        tensor.size()
    )
