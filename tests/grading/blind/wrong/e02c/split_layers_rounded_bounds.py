# exercise: split_layers
# says: the first stage has the embedding as well
# rounds evenly spaced bounds, right for (10, 4) but (6, 4) gives [2, 1, 1, 2]; the docstring:
# "the first and the last stage are longer only where all between are".

def split_layers(layers: int, stages: int) -> list[int]:
    bounds = [round(s * layers / stages) for s in range(stages + 1)]
    return [behind - before for before, behind in zip(bounds, bounds[1:])]
