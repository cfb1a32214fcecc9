# exercise: plan_peak
# says: its first input only, not one a layer


def plan_peak(plan, layers):
    held = peak = 0
    for start, stop, mode in plan:
        inside = layers[start:stop]
        everything = sum(layer.saved_bytes for layer in inside)
        peak = max(peak, held + everything)
        held += sum(layer.input_bytes for layer in inside) if mode == "full" else everything
    return peak
