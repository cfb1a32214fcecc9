# exercise: pairwise_all_to_all
# differs: one block of memory for all places, unbound into a list; partners from two rotated ranges
import torch


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    n, me = group.size, group.rank
    block = chunks[0].new_empty((n, *chunks[0].shape))
    places = list(block.unbind(0))
    places[me].copy_(chunks[me])
    onwards = [(me + k) % n for k in range(1, n)]
    for to, source in zip(onwards, reversed(onwards)):
        places[source] = group.exchange(chunks[to], to, places[source], source)
    return places
