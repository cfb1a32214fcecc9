# exercise: sum_over_ranks
# says: deadlock
# says: rank 0
# says: recv from rank 1

def sum_over_ranks(group, x):
    return group.recv(x, (group.rank + 1) % group.size)
