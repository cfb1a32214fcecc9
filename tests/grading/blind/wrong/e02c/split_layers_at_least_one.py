# exercise: split_layers
# says: too many
# every stage gets at least one layer, so with fewer layers than stages they add up to more;
# "there may be fewer layers than stages", "they add up to `layers`"

def split_layers(layers: int, stages: int) -> list[int]:
    base, more = divmod(layers, stages)
    if base == 0:
        return [1] * stages
    first = (stages - more) // 2
    return [base + (first <= i < first + more) for i in range(stages)]
