# exercise: plan_peak
# says: as if every layer were kept


def plan_peak(plan, layers):
    held = peak = 0
    for start, stop, mode in plan:
        inside = layers[start:stop]
        everything = sum(layer.saved_bytes for layer in inside)
        peak = max(peak, held + everything)
        held += everything
    return peak
