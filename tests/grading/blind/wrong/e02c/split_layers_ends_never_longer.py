# exercise: split_layers
# says: the slowest stage sets the pace of all
# the rest goes round and round the inner stages only, so split_layers(11, 4) is [2, 4, 3, 2]:
# "differ by one at most", the ends stay short only "where that is possible".

def split_layers(layers: int, stages: int) -> list[int]:
    base, more = divmod(layers, stages)
    counts = [base] * stages
    inner = max(stages - 2, 1)
    middle = (stages - more) // 2 - 1  # begin in the middle
    for i in range(more):
        counts[1 + (max(middle, 0) + i) % inner] += 1
    return counts
