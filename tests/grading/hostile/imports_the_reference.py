# exercise: chunk_sizes
# says: imports minitrain.parallel.collectives.algorithms

def chunk_sizes(elements, ranks):
    from minitrain.parallel.collectives.algorithms import chunk_sizes as reference

    return reference(elements, ranks)
