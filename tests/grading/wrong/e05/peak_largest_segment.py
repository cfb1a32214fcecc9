# exercise: plan_peak
# says: that is the largest segment alone


def plan_peak(plan, layers):
    held = peak = 0
    for start, stop, mode in plan:
        inside = layers[start:stop]
        everything = sum(layer.saved_bytes for layer in inside)
        peak = max(peak, everything)
        held += inside[0].input_bytes if mode == "full" else everything
    return peak
