# exercise: split_layers
# says: the slowest stage sets the pace of all
# the remainder goes round among the inner stages only; where it is stages-1 an inner stage gets
# two (7, 4: [1, 3, 2, 1])

def split_layers(layers: int, stages: int) -> list[int]:
    base, remainder = divmod(layers, stages)
    counts = [base] * stages
    inner = max(stages - 2, 1)
    for i in range(remainder):
        counts[1 + i % inner] += 1
    return counts
