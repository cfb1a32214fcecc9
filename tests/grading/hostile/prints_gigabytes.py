# exercise: chunk_sizes
# says: printed more than

def chunk_sizes(elements, ranks):
    line = "x" * 2**20
    while True:
        print(line)
