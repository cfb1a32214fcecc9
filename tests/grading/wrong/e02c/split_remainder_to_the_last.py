# exercise: split_layers
# says: the remainder is shared out


def split_layers(layers, stages):
    each = layers // stages
    return [each] * (stages - 1) + [layers - each * (stages - 1)]
