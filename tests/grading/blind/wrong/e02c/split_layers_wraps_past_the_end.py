# exercise: split_layers
# says: the first stage has the embedding as well
# the rest starts at the middle stage and goes on to the right, so that it reaches the last
# stage while stages between stay shorter


def split_layers(layers: int, stages: int) -> list[int]:
    counts = [layers // stages] * stages
    middle = stages // 2
    for k in range(layers % stages):
        counts[(middle + k) % stages] += 1
    return counts
