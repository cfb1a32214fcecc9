# exercise: plan_peak
# says: not the largest one's alone
# At a segment's backward only its largest layer is counted, as if they came back one by one.
def plan_peak(plan, layers):
    held = peak = 0
    for start, stop, mode in plan:
        inside = layers[start:stop]
        peak = max(peak, held + max(layer.saved_bytes for layer in inside))
        everything = sum(layer.saved_bytes for layer in inside)
        held += inside[0].input_bytes if mode == "full" else everything
    return peak
