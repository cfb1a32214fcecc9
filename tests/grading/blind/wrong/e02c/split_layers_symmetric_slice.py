# exercise: split_layers
# says: too many
# the longer stages reach from `first` to `stages - first`, so with an odd rest there is one too
# many: "they add up to `layers`".

def split_layers(layers: int, stages: int) -> list[int]:
    base, more = divmod(layers, stages)
    counts = [base] * stages
    if more:
        first = (stages - more) // 2
        for stage in range(first, stages - first):
            counts[stage] += 1
    return counts
