# exercise: split_layers
# says: every layer is in one stage | the remainder is shared out


def split_layers(layers, stages):
    each = -(-layers // stages)
    counts = []
    while layers > 0:
        counts.append(min(each, layers))
        layers -= counts[-1]
    return counts + [0] * (stages - len(counts))
