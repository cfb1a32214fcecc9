# exercise: split_layers
# says: the slowest stage sets the pace of all
# all remaining layers go round the inner stages only, so with stages - 1 left over one inner
# stage gets two more (11, 4 -> [2, 4, 3, 2]); the docstring: "differ by one at most", "one
# each".

def split_layers(layers: int, stages: int) -> list[int]:
    base, more = divmod(layers, stages)
    counts = [base] * stages
    if stages <= 2:
        counts[0] += more
        return counts
    inner = stages - 2
    start = max(0, (inner - more) // 2)
    for i in range(more):
        counts[1 + (start + i) % inner] += 1
    return counts
