def split_layers(layers, stages):
    """One layer at a time to the stage that is shortest, ends last among equals."""
    counts = [0] * stages
    for _ in range(layers):
        middle = (stages - 1) / 2
        counts[min(range(stages), key=lambda i: (counts[i], abs(i - middle)))] += 1
    return counts
