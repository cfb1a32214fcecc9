# exercise: chunk_sizes
# says: RecursionError

def chunk_sizes(elements, ranks):
    return chunk_sizes(elements, ranks)
