# exercise: chunk_sizes
# says: memory

def chunk_sizes(elements, ranks):
    return bytearray(2**45)
