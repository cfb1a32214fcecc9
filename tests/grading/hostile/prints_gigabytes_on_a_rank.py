# exercise: sum_over_ranks
# says: printed more than

def sum_over_ranks(group, x):
    while True:
        print("x" * 2**16)
