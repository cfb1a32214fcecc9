# exercise: split_layers
# says: the first stage has the embedding as well
# borders at round(s * layers / stages) give [2, 3, 3, 2] for (10, 4) by luck, but [2, 1, 1, 2]
# for (6, 4): "what remains goes to stages in the middle".

def split_layers(layers: int, stages: int) -> list[int]:
    borders = [round(s * layers / stages) for s in range(stages + 1)]
    return [end - start for start, end in zip(borders, borders[1:])]
