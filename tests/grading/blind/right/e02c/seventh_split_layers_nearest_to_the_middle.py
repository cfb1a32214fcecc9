# exercise: split_layers
# the longer stages are the ones nearest to the middle, found by a sort, not by a start; gpipe by a
# product of kinds and numbers, one shared list
from itertools import product, starmap

from minitrain.parallel.pipeline.operations import Operation, Schedule


def split_layers(layers: int, stages: int) -> list[int]:
    # distance from the nearer end: inner stages come first when a layer is left
    inner_first = sorted(range(stages), key=lambda s: -min(s, stages - 1 - s))
    counts = [0] * stages
    for layer in range(layers):
        counts[inner_first[layer % stages]] += 1
    return counts


def gpipe(p: int, m: int) -> Schedule:
    order = list(starmap(Operation, product("FB", range(m))))
    return Schedule("gpipe", m, 1, [order] * p)
