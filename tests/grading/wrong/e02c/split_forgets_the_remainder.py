# exercise: split_layers
# says: every layer is in one stage


def split_layers(layers, stages):
    return [layers // stages] * stages
