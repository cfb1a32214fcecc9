"""Silent data corruption: found by comparing values that must be equal to the last bit.

    replicas   a fingerprint of the weights on each rank: 7f3a  7f3a  91c0  7f3a   -> rank 2
    a step     twice on one rank, from the same inputs: different bits              -> this rank

Llama 3 met 6 silent data corruptions in 54 days (arXiv 2407.21783, table 5). A wrong gradient is
averaged into all replicas alike, and only repeating the step shows it; wrong weights differ until
they are averaged. After that all ranks' weights are wrong: go back to an older checkpoint. Cost:
one pass over the weights and 8 bytes a rank; repeating a step costs a step. Lab: e12.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from minitrain.generators import generator_states, restore_generators
from minitrain.ranks.group import Group
from minitrain.reliability.events import EventLog

ODD = 2654435761  # Knuth's multiplier; 2 i ODD + 1 is odd for every index i
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


@torch.no_grad()
def fingerprint(tensors: Iterable[Tensor]) -> Tensor:
    """(), int64: changes when any single bit is flipped; computed on bits, so that NaNs count.

    Each word times an odd number of its own index, summed modulo 2^64: a difference of 2^k times an
    odd number is never 0, and the order of the sum does not matter.
    """
    total = torch.zeros((), dtype=torch.int64)
    for number, tensor in enumerate(tensors):
        words = tensor.detach().contiguous().view(-1).view(WORDS[tensor.element_size()]).long()
        places = torch.arange(len(words), device=words.device) * (2 * ODD) + 1
        own = (words * places).sum().cpu()
        total += own * (2 * number + 1)
    return total


def odd_ranks(group: Group, mine: Tensor) -> list[int]:
    """The ranks whose fingerprint differs from the majority's; all, if there is no majority."""
    everyone = torch.empty(group.size, dtype=torch.int64, device=group.device)
    found = group.all_gather(everyone, mine.reshape(1).to(group.device)).tolist()
    value, count = Counter(found).most_common(1)[0]
    if 2 * count <= group.size and count < group.size:
        return list(range(group.size))
    return [rank for rank, other in enumerate(found) if other != value]


def replicas_agree(
    group: Group, tensors: Iterable[Tensor], log: EventLog | None = None, step: int | None = None
) -> bool:
    """True if all ranks hold the same bits; each rank that does not is logged as "corrupt"."""
    odd = odd_ranks(group, fingerprint(tensors))
    if group.rank in odd and log is not None:
        log.of(group.rank).write("corrupt", step, ranks=odd)
    return not odd


def repeats(compute: Callable[[], Iterable[Tensor]]) -> bool:
    """True if `compute` gives the same bits twice, from the same random numbers.

    It must leave no state behind: gradients returned and cleared, no optimizer step.
    """
    states = generator_states()
    first = fingerprint(compute())
    restore_generators(states)
    return bool(first == fingerprint(compute()))
