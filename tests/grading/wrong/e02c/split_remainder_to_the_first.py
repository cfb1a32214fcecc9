# exercise: split_layers
# says: the first stage has the embedding as well


def split_layers(layers, stages):
    each, more = divmod(layers, stages)
    return [each + (i < more) for i in range(stages)]
