# exercise: chunk_sizes
# says: reads standard input

def chunk_sizes(elements, ranks):
    return [int(n) for n in input("sizes? ").split()]
