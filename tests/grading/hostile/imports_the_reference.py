# exercise: chunk_sizes
# says: imports minitrain.parallel.collectives

def chunk_sizes(elements, ranks):
    from minitrain.parallel.collectives import chunk_sizes as reference

    return reference(elements, ranks)
