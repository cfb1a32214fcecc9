# exercise: split_layers
# the longer stages begin right behind the first one (any place in the middle is allowed), the
# last and then the first come at the end of the queue
def split_layers(layers: int, stages: int) -> list[int]:
    queue = [*range(1, stages), 0]
    longer = set(queue[: layers % stages])
    return [layers // stages + (stage in longer) for stage in range(stages)]
