def split_layers(layers, stages):
    """The middle from behind, then the last stage, then the first."""
    base, more = divmod(layers, stages)
    turn = [*range(stages - 2, 0, -1), stages - 1, 0]
    longer = set(turn[:more])
    return tuple(base + 1 if stage in longer else base for stage in range(stages))
