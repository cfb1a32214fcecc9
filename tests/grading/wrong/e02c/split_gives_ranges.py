# exercise: split_layers
# says: which are 5 numbers: give one for each stage


def split_layers(layers, stages):
    return [round(layers * i / stages) for i in range(stages + 1)]
