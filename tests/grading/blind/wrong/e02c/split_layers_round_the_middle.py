# exercise: split_layers
# says: the slowest stage sets the pace of all
# the remainder goes round the inner stages only, so where it is stages - 1 one of them gets two
# more ((7, 4) gives [1, 3, 2, 1]); "differ by one at most"

def split_layers(layers: int, stages: int) -> list[int]:
    base, more = divmod(layers, stages)
    counts = [base] * stages
    inner = max(1, stages - 2)
    for i in range(more):
        counts[1 + i % inner] += 1
    return counts
