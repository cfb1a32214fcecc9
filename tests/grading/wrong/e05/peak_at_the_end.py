# exercise: plan_peak
# says: the ones behind it are gone


def plan_peak(plan, layers):
    held = largest = 0
    for start, stop, mode in plan:
        everything = sum(layer.saved_bytes for layer in layers[start:stop])
        largest = max(largest, everything)
        held += layers[start].input_bytes if mode == "full" else everything
    return held + largest
