# right: the longer stages are those nearest to the centre, found by sorting; GPipe is a product of kinds and microbatches, a list of its own for each rank
from itertools import product

from minitrain.parallel.pipeline.operations import Operation, Schedule


def split_layers(layers: int, stages: int) -> list[int]:
    def from_centre(stage):
        return abs(2 * stage - (stages - 1))

    nearest = sorted(range(stages), key=from_centre)
    longer = set(nearest[: layers % stages])
    return [layers // stages + (stage in longer) for stage in range(stages)]


def gpipe(p: int, m: int) -> Schedule:
    orders = []
    while len(orders) < p:
        orders.append([Operation(kind, i) for kind, i in product("FB", range(m))])
    return Schedule("gpipe", m, 1, orders)
