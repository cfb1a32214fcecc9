# exercise: sum_over_ranks
# says: deadline

def sum_over_ranks(group, x):
    while group.rank == 1:
        pass
    return group.recv(x, 1)
