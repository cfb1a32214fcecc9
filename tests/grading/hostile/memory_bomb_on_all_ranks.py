# exercise: sum_over_ranks
# says: memory

def sum_over_ranks(group, x):
    kept = []
    while True:
        kept.append(bytearray(2**24))
